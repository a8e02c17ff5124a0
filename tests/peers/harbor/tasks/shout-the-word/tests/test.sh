#!/bin/bash
[ "$(id -un)" = root ] && [ "$(stat -c %U /home/worker/word)" = worker ] || exit 1
[ "$(cat /home/worker/word)" = "${EXPECTED^^}" ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
