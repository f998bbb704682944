--- The default of het.train's `on_notice`: ranks whose machines will be taken away leave after the step that was just
-- done; what only they have is written to the others first.
local errors = require "het.errors"

local seconds_together = 0.5   -- notices to ranks of one machine come one after the other

return function(_, notice)
  if type(notice) ~= "table" or type(notice.ranks) ~= "table" or type(notice.of) ~= "number" then
    errors.usage("het.policy.on_notice takes the run and the notice that on_notice was given")
  end
  if #notice.ranks < notice.of and (notice.waited or 0) < seconds_together then return "wait" end
  local left = notice.of - #notice.ranks
  if left < (notice.least or 1) then return "stop" end   -- too few: the run ends, saved
  return "leave"
end
