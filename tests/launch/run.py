#!/usr/bin/env python3
"""Several ranks on one machine: the losses of one device, one sentence when a rank dies, nothing left behind.

usage: run.py HETRUN [unittest arguments]
"""
import sys
import unittest

from deaths import Launcher, Leftovers, Interrupts, Deaths
from mistakes import Mistakes
from traces import Traces
from training import Training

__all__ = ['Launcher', 'Leftovers', 'Interrupts', 'Deaths', 'Mistakes', 'Traces', 'Training']

if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
