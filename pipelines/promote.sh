#!/bin/sh
# Promotes exactly what a check.sh of an earlier job cleared: the version that its verdict.json pins.
#
#   pipelines/promote.sh ALIAS [OPTION...]
#   REPORT_FOLDER=out pipelines/promote.sh champion --key gate.key.pub --expect-current 2
#
# OPTIONs go to `validator promote` as they are. The report folder comes from another job and is believed in nothing: it
# says which version is meant, and `validator promote` verifies the signed clearance beside it with the key of *this* job
# before anything moves. A folder whose verdict is not `pass` ends with 4, one that cannot be read with 3.
set -u
export LC_ALL=C

if [ $# -lt 1 ]; then
  echo "usage: promote.sh ALIAS [OPTION...]" >&2
  exit 2
fi
alias=$1
shift
folder=${REPORT_FOLDER:-validator-report}
document=$folder/verdict.json

read_document() {
  python3 -c '
import json, sys
with open(sys.argv[1], encoding="utf-8") as stream:
    found = json.load(stream)
for key in sys.argv[2:]:
    found = found[key]
print(found)
' "$document" "$@" 2>/dev/null
}

unreadable() {
  echo "promote.sh: $document cannot be read; nothing is promoted" >&2
  exit 3
}

verdict=$(read_document verdict) || unreadable
uri=$(read_document subject pinned_uri) || unreadable
if [ "$verdict" != pass ]; then
  echo "promote.sh: $document says: $verdict; nothing is promoted" >&2
  exit 4
fi

validator promote --alias "$alias" --clearance "$folder/clearance.json" "$@" -- "$uri"
code=$?
if [ "$code" -eq 1 ]; then
  # `promote` judges no model, so it never says 1: an interpreter that did not start does.
  echo "promote.sh: exit code 1: the program did not run; look at the alias before you go on" >&2
  code=3
fi
exit "$code"
