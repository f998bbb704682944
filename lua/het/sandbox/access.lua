--- Which files the library opens for a recipe. What a recipe may reach stands in lua/recipe_files.h and is enforced
-- where files are opened. This module asks ahead, so that all mistakes of a recipe are reported before anything runs.
local native = require "het.native"
local errors = require "het.errors"

local access = {}

--- Why a recipe is not given a path, as a sentence; nil when it is.
-- @string path
-- @bool writes whether it is written
function access.problem(path, writes)
  if path == "" then return nil end   -- it names no file: whoever opens it says so
  return native.path_problem(path, writes or false)
end

--- Raise when a recipe is not given a path.
function access.check(path, writes)
  local problem = access.problem(path, writes)
  if problem then errors.usage("%s", problem) end
end

return access
