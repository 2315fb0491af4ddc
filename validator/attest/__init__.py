"""The clearance: what one passed check was about, signed.

    canonical      one text per value: strict reading, no second spelling
    statement      the in-toto statement and the project's predicate
    keys           key files, and the closed union of signers
    envelope       DSSE: signed bytes around a statement
    bundle         sigstore's bundle around an envelope, and whom its certificate names
    keyless        the adapter of sigstore: signs with an OIDC token, verifies bundles
    sealing        by key or keyless: the closed unions of who signs, who is accepted, and what a clearance looks like
    judgement      whether a statement holds, by itself and for the bytes at hand. Pure

What may not be changed lightly: nothing of a payload is looked at before its signature is verified; whatever cannot be
read is refused, never passed over; and a statement is judged by the same function when it is made and when it is
verified. Canonical text is required, not only written: then a byte that is changed anywhere cannot go unnoticed.
"""
