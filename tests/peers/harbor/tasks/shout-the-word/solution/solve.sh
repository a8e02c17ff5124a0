#!/bin/bash
tr a-z A-Z < "$WHERE" > word
