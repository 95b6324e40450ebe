#!/bin/sh
echo 'hello'
