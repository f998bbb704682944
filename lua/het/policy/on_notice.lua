--- The default of het.train's `on_notice`: ranks whose machines will be taken away leave after the step that was just
-- done; what only they have is written to the others first.
local seconds_together = 0.5   -- notices to ranks of one machine come one after the other

return function(_, notice)
  if #notice.ranks < notice.of and notice.waited < seconds_together then return "wait" end
  if notice.of - #notice.ranks < notice.least then return "stop" end   -- too few would be left: the run ends, saved
  return "leave"
end
