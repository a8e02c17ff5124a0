#!/bin/sh
cp /solution/median.py /app/median.py
