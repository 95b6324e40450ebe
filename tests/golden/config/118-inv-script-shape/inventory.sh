#!/bin/sh
echo '{"web": {"hosts": "web01"}}'
