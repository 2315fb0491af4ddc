#!/bin/sh
# Runs `validator check` in any CI and ends with an exit code that a job may rely on.
#
#   pipelines/check.sh URI [OPTION...]
#   REPORT_FOLDER=out SIGN_KEY=gate.key pipelines/check.sh models:/alexnet/3 --policy policy.toml --golden golden/
#
# OPTIONs go to `validator check` as they are. 0 is said only when the program said 0 *and* the verdict.json that this
# very run wrote says `pass`. No document, an unreadable one or another verdict beside 0 is 3: nothing is known. A 1
# without a document is 3, too: it came from an interpreter that did not start, and not from a judged model.
#
# SIGN_KEY, if it is set, is the file of a private key that a pass is signed with. CI systems hand files over as links, or
# so that a group can read them; the program takes neither, so it gets a private copy, which is removed at the end.
set -u
export LC_ALL=C

if [ $# -lt 1 ]; then
  echo "usage: check.sh URI [OPTION...]" >&2
  exit 2
fi
uri=$1
shift
folder=${REPORT_FOLDER:-validator-report}
document=$folder/verdict.json

# An earlier verdict must not be read as this run's, nor an earlier clearance be taken for one of this run.
rm -f -- "$document" "$folder/clearance.json" || exit 3

if [ -n "${SIGN_KEY:-}" ]; then
  private=$(mktemp) || exit 3
  trap 'rm -f -- "$private"' EXIT
  trap 'exit 130' INT TERM
  cat -- "$SIGN_KEY" > "$private" || exit 2
  set -- --sign-key "$private" "$@"
fi

# --output stands last, so that REPORT_FOLDER and the place that is read below are one.
validator check "$@" --output "$folder" -- "$uri"
code=$?

# -I: no import from the current folder, which belongs to the change under review.
verdict=$(python3 -I -c '
import json, sys
with open(sys.argv[1], encoding="utf-8") as stream:
    print(json.load(stream)["verdict"])
' "$document" 2>/dev/null) || verdict=none

case $code:$verdict in
  0:pass) ;;
  0:*)
    echo "check.sh: exit code 0, but $document says: $verdict; not cleared" >&2
    code=3
    ;;
  1:none)
    echo "check.sh: exit code 1 without $document: the program did not run; not cleared" >&2
    code=3
    ;;
esac
exit "$code"
