#!/bin/sh
# Promotes exactly what a check.sh of an earlier job cleared: the version that its verdict.json pins.
#
#   pipelines/promote.sh ALIAS [OPTION...]
#   EXPECT_URI=models:/alexnet/3 REPORT_FOLDER=out pipelines/promote.sh champion --key gate.key.pub --expect-current 2
#
# OPTIONs go to `validator promote` as they are. The report folder comes from another job and is believed in nothing: it
# says which version is meant, and `validator promote` verifies the signed clearance beside it with the key of *this* job
# before anything moves. A folder whose verdict is not `pass` ends with 4, one that cannot be read with 3.
#
# EXPECT_URI is what the check was asked for, from *this* job: the folder may name no other model, and no other version
# where it names one, else the end is 4. Without it the folder chooses among all that was ever cleared.
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
  # -I: no import from the current folder, where the files of another job may lie.
  python3 -I -c '
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

refuse() {
  echo "promote.sh: $document $1; nothing is promoted" >&2
  exit 4
}

verdict=$(read_document verdict) || unreadable
uri=$(read_document subject pinned_uri) || unreadable
[ "$verdict" = pass ] || refuse "says: $verdict"

version=${uri##*/}
model=${uri%/*}
case ${model#models:/} in '' | *[/@]*) refuse "pins no models:/NAME/VERSION, but $uri" ;; esac
case $version in '' | *[!0-9]*) refuse "pins no models:/NAME/VERSION, but $uri" ;; esac
case ${EXPECT_URI:-} in
  '' | "$uri" | "$model@"*) ;;
  *) refuse "is about $uri, and this job about $EXPECT_URI" ;;
esac

validator promote --alias "$alias" --clearance "$folder/clearance.json" "$@" -- "$uri"
code=$?
if [ "$code" -eq 1 ]; then
  # `promote` judges no model, so it never says 1: an interpreter that did not start does.
  echo "promote.sh: exit code 1: the program did not run; look at the alias before you go on" >&2
  code=3
fi
exit "$code"
