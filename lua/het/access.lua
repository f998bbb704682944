--- Which files the library opens for a recipe. Recipes are shared between strangers, and relative paths begin where
-- hetrun was started: a recipe is given the files of its own folder, those that the person names on the command line,
-- and, to read, what is under /usr. Without a recipe (the prompt, `hetrun bench`) and with --trust all files are.
local native = require "het.native"
local errors = require "het.errors"

local access = {}

local folders       -- of the recipe, and of a cluster file; nil: no bounds
local granted = {}  -- named on the command line: files, or folders with all in them

--- Does a real path lie in a folder, or is it the folder?
function access.under(path, folder)
  return path == folder or folder == "/" or path:sub(1, #folder + 1) == folder .. "/"
end

local function under_any(path, list)
  for _, folder in ipairs(list) do
    if access.under(path, folder) then return true end
  end
  return false
end

--- From now on only what lies in this folder, or in those given before.
function access.bound(folder)
  folders = folders or {}
  folders[#folders + 1] = native.resolve(folder)
end

--- The person named this path on the command line.
function access.grant(path)
  local real = path ~= "" and native.resolve(path)
  if real and real ~= "" then granted[#granted + 1] = real end
end

--- Did the person name this real path, or a folder that it is in?
function access.is_granted(real) return under_any(real, granted) end

--- Why a recipe is not given a path, as a sentence; nil when it is. Links are followed before it is looked at.
-- @string path
-- @bool writes whether it is written
function access.problem(path, writes)
  if not folders or path == "" then return nil end   -- an empty path names no file: whoever opens it says so
  local real = native.resolve(path)
  if under_any(real, folders) or access.is_granted(real) then return nil end
  if not writes and access.under(real, "/usr") then return nil end
  local beside = path:sub(1, 1) ~= "/" and native.resolve(folders[1] .. "/" .. path)
  if beside and beside ~= real and access.under(beside, folders[1]) and native.path_kind(beside) ~= "none" then
    return ("'%s' is %s, since paths begin where hetrun was started; the one in the recipe's folder is meant with "
      .. "cd %s"):format(path, real, folders[1])
  end
  return ("'%s' lies outside the recipe's folder %s; name it by an option on the command line, or let the recipe "
    .. "open any file with --trust"):format(path, folders[1])
end

--- Raise when a recipe is not given a path.
function access.check(path, writes)
  local problem = access.problem(path, writes)
  if problem then errors.usage("%s", problem) end
end

return access
