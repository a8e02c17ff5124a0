#!/bin/bash
wc -l < words.txt > answer.txt
