"""The verdict as a document, and its renderings. `model` is the document; everything else is made from it alone.

What may not be changed lightly: nothing here decides. A renderer reads statuses and never compares a number with a
limit to find out how a finding stands.
"""
