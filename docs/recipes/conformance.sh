#!/usr/bin/env bash
# Run the suite on an accelerator, judge the report with the gate, and publish a page:
#
#     conformance.sh ACCELERATOR [options of pytest]
#
# PROFILE   profile of the gate                            (training)
# BASELINE  last accepted report, if any                   (accepted.json; missing in the first run)
# WAIVERS   agreed waivers, if any                         (waivers/ACCELERATOR.toml)
# REPORTS   folder for reports                             (conformance-report)
# PAGE      folder for the page                            (conformance-page)
#
# Status 0: accepted. 1: rejected. Other statuses come from the run or the gate: docs/ci.md, docs/gate.md.
set -uo pipefail

accelerator=${1:?name an accelerator, such as: conformance.sh supa}
shift
profile=${PROFILE:-training}
baseline=${BASELINE:-accepted.json}
waivers=${WAIVERS:-waivers/$accelerator.toml}
reports=${REPORTS:-conformance-report}
page=${PAGE:-conformance-page}
report=$reports/$accelerator/report.json
summary=$reports/$accelerator/gate.md

agreed=()
[ -e "$waivers" ] && agreed+=(--waivers "$waivers")
pytest --accelerator="$accelerator" --conformance-report="$reports" ${agreed[@]+"${agreed[@]}"} "$@"
ran=$?
case $ran in
  0 | 1) ;;         # all cases have a verdict, and the gate decides about them
  *) exit "$ran" ;; # interrupted, set up wrongly, or without all verdicts: there is nothing to judge
esac

[ -e "$baseline" ] && agreed+=(--baseline "$baseline")
conformance gate "$report" --profile "$profile" ${agreed[@]+"${agreed[@]}"} --format markdown -o "$summary"
judged=$?
cat "$summary"
[ -n "${GITHUB_STEP_SUMMARY:-}" ] && cat "$summary" >>"$GITHUB_STEP_SUMMARY"

conformance publish "$reports"/*/ -o "$page"
exit "$judged"
