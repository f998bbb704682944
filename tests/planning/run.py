#!/usr/bin/env python3
"""`hetrun plan`, `hetrun simulate` and `hetrun profile`: what they print, draw and refuse; that plans train, and that
what was measured is what plans are made of.

usage: run.py HETRUN [unittest arguments]
"""
import sys
import unittest

from measured_runs import Measured
from mistakes import Policies, Mistakes
from pages import Pages
from plans import Plans, Replans, Simulations
from profiles import Profiles
from solving import Solving
from synthesis import Synthesis
from workloads import Workloads

__all__ = ['Measured', 'Policies', 'Mistakes', 'Pages', 'Plans', 'Replans', 'Simulations', 'Profiles', 'Solving', 'Synthesis',
           'Workloads']

if __name__ == '__main__':
    unittest.main(argv=sys.argv[:1] + sys.argv[1:])
