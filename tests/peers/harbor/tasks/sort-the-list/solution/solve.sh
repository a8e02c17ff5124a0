#!/bin/sh
sort -n -o list.txt list.txt
