--- `hetrun doctor`: what this machine offers, and what is missing, a line each.
local native = require "het.native"
local errors = require "het.errors"
local peak = require "het.profile.peak"
local text = require "het.text"

local doctor = {}

-- A measurement takes seconds; announced apart from the report, which may be kept.
local function announce(device, dtype)
  if not native.settings.quiet then native.write("stderr", ("measuring %s in %s ...\n"):format(device, dtype)) end
end

local function say(name, words) native.write("stdout", ("%-12s %s\n"):format(name, words)) end

local function clock(gpu, name)
  local most, now = gpu[name], gpu[name .. "_now"]
  if most == 0 then return now > 0 and ("%.0f MHz"):format(now / 1e6) or "unknown" end
  return ("%.0f MHz%s"):format(most / 1e6, now > 0 and (", now %.0f"):format(now / 1e6) or "")
end

local function say_gpu(index, gpu)
  say("cuda:" .. index, ("%s, %s, %d multiprocessors, compute capability %s, at %s%s"):format(gpu.name,
    text.bytes(gpu.memory), gpu.multiprocessors, gpu.capability, gpu.bus_id,
    gpu.usable and "" or "; too old for the kernels here, which need 8.0"))
  say("", ("clock %s; memory's %s"):format(clock(gpu, "clock"), clock(gpu, "memory_clock")))
end

local function say_cuda()
  local found = native.gpu_report()
  local gpus, cublas = found.gpus or {}, false
  if found.driver and found.driver ~= "" then
    say("CUDA", ("driver for CUDA %s, runtime %s"):format(found.driver, found.runtime))
  end
  for i, gpu in ipairs(gpus) do say_gpu(i - 1, gpu) end
  if #gpus == 0 then say("CUDA", ("%s; --device cuda cannot be used"):format(found.why_none)) end
  for _, library in ipairs(found.libraries or {}) do
    if library.problem == "" then
      say(library.name, ("%s, %s"):format(library.version, library.path))
      cublas = cublas or library.name == "cuBLASLt"
      if library.name == "NCCL" then
        local given = os.getenv "NCCL_SOCKET_IFNAME"
        say("", given and ("between machines by NCCL_SOCKET_IFNAME = %s, not changed by --interface"):format(given)
          or "between machines by the interface that --interface names; without it, by one that NCCL chooses")
      end
    elseif #gpus > 0 or found.driver ~= "" then
      say(library.name, library.problem)
    end
  end
  for _, link in ipairs(found.links or {}) do
    say(("cuda:%d-%d"):format(link.from, link.to), link.nvlinks > 0 and link.nvlinks .. " NVLinks"
      or link.peers and "PCIe, memory reached directly" or "through the host's memory")
  end
  if #gpus == 0 or not cublas then return end
  for _, dtype in ipairs { "f32", "bf16" } do
    announce("cuda", dtype)
    local ok, flops = pcall(peak.measure, "cuda", dtype)
    say("cuda " .. dtype, ok and ("%.1f TFLOP/s in a large matrix product"):format(flops / 1e12)
      or (errors.describe(flops)))
  end
end

-- What the kernel offers to confine recipes with (lua/confine.h).
local function say_walls()
  local walls = native.kernel_walls()
  local offered, missing = {}, {}
  local function add(there, name, lacks)
    if there then offered[#offered + 1] = name else missing[#missing + 1] = lacks end
  end
  add(walls.landlock > 0, ("Landlock %d"):format(walls.landlock),
    "no Landlock (kernel 5.13, and lsm=landlock at boot): recipes are kept from files by the sandbox alone")
  add(walls.landlock == 0 or walls.landlock >= 3, nil,
    "Landlock below version 3 (kernel 6.2) does not keep files from being emptied")
  add(walls.landlock == 0 or walls.landlock >= 4, nil,
    "Landlock below version 4 (kernel 6.7) does not limit TCP")
  add(walls.seccomp, "seccomp", "no seccomp: recipes are kept from programs and sockets by the sandbox alone")
  add(walls.openat2, "openat2", "no openat2 (kernel 5.6): paths are opened component by component")
  say("walls", offered[1] and table.concat(offered, ", ") or "of the kernel: none")
  for _, words in ipairs(missing) do say("", words) end
end

-- Which kernels are in use and why: what the sets that multiply bf16 differently reach, measured again.
local function say_kernels()
  local sets = native.instruction_sets()
  local used = table.remove(sets, 1)
  local speeds, classes, fastest = native.product_speeds()
  local given = os.getenv "HETRUN_INSTRUCTION_SET" or ""
  local why = ""
  if given ~= "" then why = ", which HETRUN_INSTRUCTION_SET says"
  elseif speeds[1] and used == fastest then why = ", by measurement"
  elseif speeds[1] then why = (", and from the next start on for %s"):format(fastest) end
  say("", ("kernels for %s%s%s"):format(used, why, (#sets == 0 or given ~= "") and ""
    or ("; HETRUN_INSTRUCTION_SET can be %s"):format(table.concat(sets, ", "))))
  for _, speed in ipairs(speeds) do
    local reached = {}
    for i, class in ipairs(classes) do reached[i] = ("%.0f (%s)"):format(speed.flops[i] / 1e9, class) end
    say("", ("bf16 products with %s: %s GFLOP/s of one thread"):format(speed.set, table.concat(reached, ", ")))
  end
end

-- The processor's peak, and what a large product of the kernels in use reaches of it.
local function say_speed(dtype)
  announce("cpu", dtype)
  local ok, flops, kind = pcall(peak.measure, "cpu", dtype)
  if not ok then return say("cpu " .. dtype, errors.describe(flops)) end
  local product = peak.measure("cpu", dtype, "product")
  say("cpu " .. dtype, ("%.0f GFLOP/s (%s); %.0f in a large matrix product, %.0f %%"):format(flops / 1e9, kind,
    product / 1e9, 100 * product / flops))
end

--- Print the report; returns the exit code.
function doctor.run()
  if native.settings.help then
    native.write("stdout", "hetrun doctor shows what this machine can compute with, measured, and what is missing: "
      .. "processor,\nmemory, GPUs with driver, libraries, links and clocks. It has no options.\n")
    return 0
  end
  say("hetrun", native.version())
  say("processor", ("%s, %d threads"):format(native.processor(), native.threads()))
  say_kernels()
  say("memory", text.bytes(native.memory_available()) .. " available")
  say_speed "f32"
  say_speed "bf16"
  say_walls()
  say_cuda()
  return 0
end

return doctor
