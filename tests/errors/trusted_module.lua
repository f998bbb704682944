-- A mistake in a module of the recipe's own is reported as it is, not as a missing module.
require "broken_module"
