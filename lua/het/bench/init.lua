--- `hetrun bench NAME`: the speed of training on random tokens with random weights, measured as a share of the
-- machine's peak at the same precision, and that of a large matrix product in the same process beside it.
local native = require "het.native"
local errors = require "het.errors"
local graphs = require "het.train.graphs"
local machine = require "het.profile.peak"
local nn = require "het.nn"
local optim = require "het.optim"
local suggest = require "het.language.suggest"
local text = require "het.text"

local bench = {}

local models = {
  ["gpt2-124m"] = {
    sentence = "GPT-2 of 124 M parameters", context = 1024, batch = 4,
    make = function(context)
      return nn.gpt { vocab = 50257, context = context, width = 768, layers = 12, heads = 12 }
    end,
  },
  ["gpt-nano"] = {
    sentence = "nanoGPT's CPU setting: 4 layers of width 128", context = 64, batch = 12,
    make = function(context) return nn.gpt { vocab = 65, context = context, width = 128, layers = 4, heads = 4 } end,
  },
  ["gpt2-1558m"] = {
    sentence = "GPT-2 of 1,558 M parameters", context = 1024, batch = 4,
    make = function(context)
      return nn.gpt { vocab = 50257, context = context, width = 1600, layers = 48, heads = 25 }
    end,
  },
  ["llama-1b"] = {
    sentence = "a LLaMA with the sizes of Llama 3.2 1B", context = 1024, batch = 4,
    make = function(context)
      return nn.llama { vocab = 128256, context = context, width = 2048, layers = 16, heads = 32, kv_heads = 8,
        hidden = 8192, rotary = 500000, tied = true }
    end,
  },
  ["llama-60m"] = {
    sentence = "a LLaMA of 60 M parameters", context = 512, batch = 4,
    make = function(context)
      return nn.llama { vocab = 32000, context = context, width = 512, layers = 8, heads = 8, kv_heads = 4 }
    end,
  },
}

-- Benchmarks of whole runs over several processes: scripts of the source tree, run on this program, and their options.
local scripts = {
  distributed = {
    "tests/bench/distributed.py", "training over several ranks: exactness, pace, overlap, memory, failures",
    "trials",
  },
  plans = {
    "tests/bench/plans.py", "plans of four policies run for real on slowed devices, and what the simulator said",
    "trials", "only", "slower",
  },
  fidelity = {
    "tests/bench/fidelity.py", "steps on paced devices and shaped links against the simulator: pipelines, depth, "
      .. "links, runtimes", "trials", "only", "json",
  },
  profiled = {
    "tests/bench/profiled.py", "steps of this machine's processes against plans from what `hetrun profile` measured",
    "trials", "only", "json",
  },
  rules = {
    "tests/bench/rules.py", "the sharding rules of all operators, executed over uneven parts",
  },
  hap = {
    "tests/bench/hap.py", "sharding programs for HAP's four workloads: by the cost model, on its cluster (parts model, "
      .. "gains, growth), and small ones for real (parts runs, meshes)",
    "part", "gpus", "only", "trials", "json",
  },
  recovery = {
    "tests/bench/recovery/run.py", "from a loss to the next step, the cost of snapshots, a day of spot machines",
    "trials", "only", "json",
  },
  planner = {
    "tests/bench/planner.py", "auto against the baselines and brute force, by the simulator; planning time", "trials",
  },
}

local options = {
  { "precision", "f32", "f32 or bf16" },
  { "batch", nil, "samples of a step" },
  { "microbatch", nil, "samples of a micro-batch (default: the batch)" },
  { "context", nil, "tokens of a sample" },
  { "steps", 5, "steps that are timed" },
  { "warmup", 1, "steps before them" },
}

local shown = { trials = "--trials=N", json = "--json", part = "--part=PART", gpus = "--gpus=N,...",
  only = "--only=TEXT", slower = "--slower=TIMES" }

-- The options of a script, in words; nil where it has none.
local function options_of(script)
  local words = {}
  for i = 3, #script do words[i - 2] = shown[script[i]] end
  return words[1] and table.concat(words, ", ")
end

local function names_of_benchmarks()
  local names = text.keys(models)
  names[#names + 1] = "kernels"
  names[#names + 1] = "products"
  for name in pairs(scripts) do names[#names + 1] = name end
  return names
end

local function names_of_options()
  local names = {}
  for i, option in ipairs(options) do names[i] = option[1] end
  return names
end

-- Options from `--name=value` and `--name value`: the program hands over words that are no options in their order.
local function parse(words)
  local given, next_word = {}, 1
  for _, word in ipairs(native.arguments or {}) do
    local name, value = word:match("^%-%-([^=]+)=(.*)$")
    if not name then
      name, value = word:match("^%-%-(.+)$"), words[next_word]
      next_word = next_word + 1
      if not value then errors.usage("%s needs a value, such as %s=...", word, word) end
    end
    local known
    for _, option in ipairs(options) do known = known or option[1] == name end
    if not known then
      errors.usage("hetrun bench has no option --%s%s", name, suggest.sentence(name, names_of_options()))
    end
    if name == "precision" then
      if value ~= "f32" and value ~= "bf16" then
        errors.usage("--precision=%s is not one of f32, bf16", value)
      end
      given[name] = value
    else
      local number = tonumber(value)
      if not number or number ~= math.floor(number) or number < (name == "warmup" and 0 or 1) then
        errors.usage("--%s=%s is not a whole number above 0, such as --%s=2", name, value, name)
      end
      given[name] = number
    end
  end
  if words[next_word] then
    errors.usage("hetrun bench: unexpected argument '%s'; options are --name=value", words[next_word])
  end
  return given
end

local function list()
  local lines = { "hetrun bench NAME [--name=value ...] measures training; NAME is one of" }
  for _, name in ipairs(text.keys(models)) do
    local model = models[name]
    lines[#lines + 1] = ("  %-12s %s (context %d, batch %d)"):format(name, model.sentence, model.context, model.batch)
  end
  lines[#lines + 1] = ("  %-12s single kernels: attention beside a matrix product, others beside a copy (--precision)")
    :format "kernels"
  lines[#lines + 1] = ("  %-12s matrix products of three models, shape by shape (--precision)"):format "products"
  for _, name in ipairs(text.keys(scripts)) do
    local words = options_of(scripts[name])
    lines[#lines + 1] = ("  %-12s %s%s"):format(name, scripts[name][2], words and (" (%s)"):format(words) or "")
  end
  lines[#lines + 1] = "Options:"
  for _, option in ipairs(options) do
    lines[#lines + 1] = ("  --%-12s %s%s"):format(option[1], option[3],
      option[2] and (" (default: %s)"):format(option[2]) or "")
  end
  native.write("stdout", table.concat(lines, "\n") .. "\n")
end

-- Tokens drawn evenly, i32[samples, context].
local function random_tokens(samples, context, vocab, stream)
  local ids = {}
  for i = 1, samples * context do ids[i] = math.floor(native.random(0, stream, i) * vocab) end
  return native.tensor(ids, "i32", { samples, context })
end

local function write_inputs(executor, training, settings)
  local tokens = settings.batch * settings.context
  for m = 1, settings.batch / settings.microbatch do
    executor:write("inputs", random_tokens(settings.microbatch, settings.context, settings.vocab, 2 * m), m)
    executor:write("labels", random_tokens(settings.microbatch, settings.context, settings.vocab, 2 * m + 1), m)
  end
  executor:write("scale", native.tensor({ 1 / tokens }))
  executor:write("lr", 1e-4)
  if training.positions then executor:write("positions", native.arange(settings.context, "i32")) end
end

-- Seconds of each timed step; nil after Ctrl-C. Says a step a second at most.
local function time_steps(executor, settings)
  local seconds, said = {}, nil
  local last = settings.warmup + settings.steps
  for step = 1, last do
    executor:write("step", step)
    local start = native.clock()
    if not executor:run() then return nil end
    local taken = native.clock() - start
    if step > settings.warmup then seconds[#seconds + 1] = taken end
    if not native.settings.quiet and (not said or start - said >= 1 or step == last) then
      said = start
      native.write("stderr", ("step %d/%d  %.3f s  %s tokens/s  loss %.4f\n"):format(step, last, taken,
        text.count(settings.batch * settings.context / taken), executor:number("loss")))
    end
  end
  return seconds
end

-- The share of a step, by the host's clock, in which a GPU runs no kernel of it; nil on other devices. Nothing
-- below a kernel's launch is seen: core/program/busy.h says what is measured, and what cannot be.
local function launch_gap(executor, step_seconds)
  local busy = executor:busy()
  return busy and math.max(0, 1 - busy.seconds / step_seconds)
end

-- The program stands in build/lua of the source tree, or in bin of the unpacked archive.
local function run_script(name, script)
  local program = native.executable()
  local path = (program:match "^(.*)/bin/[^/]*$" or program:match "^(.*)/[^/]*/[^/]*/[^/]*$" or ".") .. "/" .. script[1]
  if native.path_kind(path) ~= "file" then
    errors.usage("hetrun bench %s runs %s of the source tree or the archive; it is not at %s", name, script[1], path)
  end
  local words, takes = { "python3", path, program }, {}
  for i = 3, #script do takes[script[i]] = true end
  for _, word in ipairs(native.arguments or {}) do
    local option, value = word:match "^%-%-(%a+)=(.+)$"
    if not takes[option or ""] or option == "json" then
      errors.usage("hetrun bench %s has no option %s; it has %s", name, word, options_of(script) or "none")
    elseif option == "trials" and not value:match "^[1-9]%d*$" then
      errors.usage("hetrun bench %s: %s is not a whole number above 0, such as --trials=3", name, word)
    end
    words[#words + 1] = word
  end
  if native.settings.json and takes.json then words[#words + 1] = "--json" end
  for i, word in ipairs(words) do words[i] = "'" .. word:gsub("'", "'\\''") .. "'" end
  local status = os.execute(table.concat(words, " "))
  return status == 0 and 0 or errors.exit_codes.environment
end

--- Run a benchmark; returns the exit code.
function bench.run(name, ...)
  if not name or native.settings.help then
    list()
    return 0
  end
  if scripts[name] then return run_script(name, scripts[name]) end
  if name == "kernels" then return require("het.bench.kernels").run(parse { ... }) end
  if name == "products" then return require("het.bench.products").run(parse { ... }) end
  local known = models[name]
  if not known then
    errors.usage("there is no benchmark '%s'%s", name, suggest.sentence(name, names_of_benchmarks()))
  end
  local given = parse { ... }
  local settings = {
    context = given.context or known.context, batch = given.batch or known.batch,
    precision = given.precision or "f32", steps = given.steps or 5, warmup = given.warmup or 1,
  }
  settings.microbatch = given.microbatch or settings.batch
  if settings.batch % settings.microbatch ~= 0 then
    errors.usage("--microbatch=%d does not divide the batch of %d; nearest that do: %s", settings.microbatch,
      settings.batch, suggest.divisors(settings.batch, settings.microbatch))
  end
  local device_name = native.settings.device or "cpu"
  local device = native.device(device_name ~= "" and device_name or "cpu")
  local model = known.make(settings.context)
  settings.vocab = model.arguments.vocab
  local shape = { "i32", { settings.microbatch, settings.context } }
  local training = graphs.training {
    model = model, inputs = shape, labels = shape, precision = settings.precision, seed = 0,
    optimizer = optim.adamw { lr = 1e-4, weight_decay = 0.1, clip = 1.0 },
  }
  local program = native.program(training.graph, { microbatches = settings.batch / settings.microbatch })
  local executor = native.executor(program, native.state(device, 0))
  write_inputs(executor, training, settings)
  local seconds = time_steps(executor, settings)
  if not seconds then return errors.exit_codes.interrupted end
  local gpu = machine.is_gpu(device_name)
  local memory = gpu and executor:memory().total or native.memory_peak()   -- before the peak's own matrices
  local step_seconds = native.median(seconds)
  local gap = launch_gap(executor, step_seconds)
  local measured = machine.device_of(device_name ~= "" and device_name or "cpu")
  local peak, peak_kind = machine.measure(measured, settings.precision)
  local product = gpu and peak or native.device(measured):product_flops(settings.precision)
  local rate = settings.batch * settings.context / step_seconds
  local result = {
    benchmark = name, precision = settings.precision, batch = settings.batch, microbatch = settings.microbatch,
    context = settings.context, threads = native.threads(), processor = gpu and device.model or native.processor(),
    parameters = model:count(), tokens_per_s = rate, step_seconds = step_seconds, peak_gflops = peak / 1e9,
    peak_kind = peak_kind, product_gflops = product / 1e9, product_fraction = product / peak,
    mfu = rate * model:training_flops(settings.context) / peak, peak_memory_bytes = memory,
    launch_gap = gap or native.null,
  }
  if native.settings.json then
    native.write("stdout", native.json_encode(result) .. "\n")
  else
    native.write("stdout", ("%s, %s, batch %d of %d tokens: %s tokens/s, %.3f s a step, MFU %.1f %% of %.0f GFLOP/s "
      .. "(%s; a large product reaches %.0f %%), %s%s\n"):format(name, settings.precision, settings.batch,
        settings.context, text.count(rate), step_seconds, 100 * result.mfu, result.peak_gflops, peak_kind,
        100 * result.product_fraction, text.bytes(memory),
        gap and (", no kernel running for %.1f %% of a step"):format(100 * gap) or ""))
  end
  return 0
end

return bench
