#!/bin/sh
cmp list.txt /tests/expected.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
