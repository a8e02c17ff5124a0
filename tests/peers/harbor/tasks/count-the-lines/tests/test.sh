#!/bin/bash
# It runs in an image of its own, to which only the artifacts are copied.
test ! -e /app/words.txt && test -e /tests/Dockerfile && test -s /logs/artifacts/size || exit 1
[ "$(cat /app/answer.txt)" = 137 ] && echo 1.0 > /logs/verifier/reward.txt || echo 0.0 > /logs/verifier/reward.txt
