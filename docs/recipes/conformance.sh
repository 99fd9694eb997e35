#!/usr/bin/env bash
# Run the suite on an accelerator, let the gate judge, publish a page:
#
#     conformance.sh ACCELERATOR [options of pytest]
#
# PROFILE   the profile to judge by                      (training)
# BASELINE  the report that was accepted last, if any    (accepted.json; not there on the first run)
# WAIVERS   the failures that are agreed to, if any      (waivers/ACCELERATOR.toml)
# REPORTS   where reports go                             (conformance-report)
# PAGE      where the page goes                          (conformance-page)
#
# Status 0: accepted. 1: rejected. Anything else is the run's or the gate's own: docs/ci.md, docs/gate.md.
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
  0 | 1) ;;         # all cases have a verdict; whether these are good enough is the gate's to say
  *) exit "$ran" ;; # interrupted, set up wrongly, or cases are missing: nothing to judge
esac

[ -e "$baseline" ] && agreed+=(--baseline "$baseline")
conformance gate "$report" --profile "$profile" ${agreed[@]+"${agreed[@]}"} --format markdown -o "$summary"
judged=$?
cat "$summary"
[ -n "${GITHUB_STEP_SUMMARY:-}" ] && cat "$summary" >>"$GITHUB_STEP_SUMMARY"

conformance publish "$reports"/*/ -o "$page"
exit "$judged"
