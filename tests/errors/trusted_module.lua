-- A mistake in a module of the recipe's own is told as it is, not as a module that is missing.
require "broken_module"
