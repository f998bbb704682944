--- Data to evaluate on beside the training data, `evaluate = { data = ... }`: whether it fits, and which of both a run
-- evaluates on.
local native = require "het.native"
local define = require "het.language.define"
local text = require "het.text"

local validation = {}

-- What is wrong with a corpus beside that of the training.
local function corpus_problem(a, other)
  local data, of_model = a.data, define.kind_of(a.model) == "layer" and a.model.class.model
  if data.objective ~= other.objective then
    local kinds = { masked = "text with masked tokens", preferences = "preferences" }
    return ("train.evaluate.data is %s, the training data %s; they have to be of one kind"):format(
      kinds[other.objective] or "text or tokens", kinds[data.objective] or "text or tokens")
  end
  local trained, its = data:vocabulary(), other:vocabulary()
  if trained and its and native.json_encode(trained) ~= native.json_encode(its) then
    return ("train.evaluate.data has another vocabulary (%s tokens) than the training data (%s); give it that of the "
      .. "training data: vocabulary = corpus"):format(text.grouped(other.vocab), text.grouped(data.vocab))
  end
  local most = of_model and a.model.arguments.vocab or data.vocab
  if other.vocab > most then
    return ("train.evaluate.data has a vocabulary of %s, %s one of %s; it may have no more tokens"):format(
      text.grouped(other.vocab), of_model and "the model" or "the training data", text.grouped(most))
  end
end

-- What a row of inputs or labels is: "f32 [3]", of several inputs each by its name.
local function row_of(kind)
  if kind[1] then return ("%s %s"):format(kind[1], text.shape(kind[2])) end
  local rows = {}
  for i, name in ipairs(text.keys(kind)) do rows[i] = name .. " = " .. row_of(kind[name]) end
  return "{ " .. table.concat(rows, ", ") .. " }"
end

-- The same of pairs.
local function pairs_problem(a, other)
  local function types_of(data)
    local labels = data.arguments.labels
    return { inputs = data:input_types(), labels = { labels.dtype, { unpack(labels.shape, 2) } } }
  end
  local trained, its = types_of(a.data), types_of(other)
  for _, name in ipairs { "inputs", "labels" } do
    local wanted, given = row_of(trained[name]), row_of(its[name])
    if wanted ~= given then
      return ("train.evaluate.data: a row of its %s is %s, one of the training data %s; they have to be alike"):format(
        name, given, wanted)
    end
  end
end

--- What is wrong with the data to evaluate on: the field, and a sentence; nil where it fits.
-- @tparam table a het.train's arguments
-- @param other `a.evaluate.data`
function validation.problem(a, other)
  local kind, its = define.kind_of(a.data), define.kind_of(other)
  if kind ~= its then
    return "evaluate.data", ("train.evaluate.data is a %s, the training data a %s; they have to be of one kind"):format(
      its == "pairs" and "table of pairs" or its, kind == "pairs" and "table of pairs" or kind)
  end
  local problem = (kind == "pairs" and pairs_problem or corpus_problem)(a, other)
  if problem then return "evaluate.data", problem end
  if other:given_holdout() then
    return "evaluate.data", ("train.evaluate.data is evaluated on whole; leave out its holdout = %s"):format(
      text.value(other:given_holdout()))
  end
  if a.data:given_holdout() then
    return "data", ("train.data has holdout = %s, which nothing would use beside evaluate.data; leave out one of them")
      :format(text.value(a.data:given_holdout()))
  end
end

--- What a run evaluates on; nil where its data holds nothing out.
-- @tparam table a het.train's arguments
function validation.data(a)
  return a.evaluate.data or a.data:has_holdout() and a.data or nil
end

return validation
