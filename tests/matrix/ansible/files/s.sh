#!/bin/sh
echo script $1 $2; echo err >&2
