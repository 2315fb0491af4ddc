#!/bin/sh
# Check, promote, try, and roll back if the trial fails: for one machine on which one person answers for all of it.
#
#   PUBLIC_KEY=gate.key.pub SIGN_KEY=gate.key SMOKE_TEST='./smoke.sh' \
#     pipelines/release.sh models:/alexnet/3 champion --policy policy.toml --golden golden/
#
# OPTIONs go to check.sh. In a CI take separate jobs instead, with check.sh in one and promote.sh in the other: what runs
# models should not hold the right to promote. SMOKE_TEST is a command for sh; PROMOTED_URI names to it what was
# promoted. When it fails, the alias goes back to its previous holder. POLICY_DIGEST, if it is set, is the policy that must
# have been used.
#
# Ends with 0 when the version is promoted and the trial did not fail, with 1 when the check or the trial failed, and with
# the exit code of the step that stopped it otherwise. When a rollback fails its exit code is the last word: the alias
# still points to a version that failed its trial.
set -u
here=$(dirname -- "$0")

if [ $# -lt 2 ] || [ -z "${PUBLIC_KEY:-}" ] || [ -z "${SIGN_KEY:-}" ]; then
  echo "usage: PUBLIC_KEY=FILE SIGN_KEY=FILE release.sh URI ALIAS [OPTION...]" >&2
  exit 2
fi
uri=$1
alias=$2
shift 2

"$here/check.sh" "$uri" "$@" || exit
# Before anything moves: a trial that cannot be named could not be taken back either.
name=$(python3 -I -c '
import json, sys
with open(sys.argv[1], encoding="utf-8") as stream:
    print(json.load(stream)["subject"]["name"])
' "${REPORT_FOLDER:-validator-report}/verdict.json") || exit 3
EXPECT_URI=$uri "$here/promote.sh" "$alias" --key "$PUBLIC_KEY" \
  ${POLICY_DIGEST:+--policy-digest "$POLICY_DIGEST"} || exit
[ -n "${SMOKE_TEST:-}" ] || exit 0

PROMOTED_URI="models:/$name@$alias" sh -c "$SMOKE_TEST" && exit 0

echo "release.sh: the trial failed; $alias goes back to its previous holder" >&2
validator rollback --alias "$alias" --key "$PUBLIC_KEY" -- "models:/$name" || {
  code=$?
  echo "release.sh: the rollback failed, too: look at models:/$name@$alias, which may still be what failed its trial" >&2
  exit "$code"
}
exit 1
