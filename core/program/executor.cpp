#include "core/program/executor.h"

#include <chrono>
#include <cmath>
#include <span>
#include <unordered_map>
#include <utility>

#include "core/base/elapsed.h"
#include "core/base/error.h"
#include "core/base/units.h"
#include "core/comm/staged.h"
#include "core/comm/steps.h"
#include "core/program/non_finite.h"

namespace het {
namespace {

// From one rank to one other, as stages pass micro-batches on.
bool is_message(CollectiveKind kind) {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

}  // namespace

// One instruction, ready: its kernel, or the collective that it starts or awaits; and where its operands'
// addresses stand in addresses_.
struct Executor::Call {
  Kernel* kernel = nullptr;
  Collective* collective = nullptr;
  bool starts = false;
  bool stream_ordered = false;  // the device orders it with the kernels
  bool requires_sync = false;   // the host waits for the device first: what was awaited must have come
  int first_input = 0, first_output = 0;
  int64_t sent_bytes = 0;  // by a start
};

// Calls [begin, end) between which the host does nothing: kernels, or one that starts or awaits a collective.
struct Executor::Segment {
  int begin, end;
  bool has_run = false;                  // to its end
  std::unique_ptr<Recording> recording;  // null: not yet, or the device records nothing
};

Executor::Executor(Program program, std::shared_ptr<StateStore> state, std::shared_ptr<Groups> groups)
    : program_(std::move(program)),
      state_(std::move(state)),
      memory_(memory_of(program_)),
      groups_(std::move(groups)) {
  const std::vector<Kernel*> kernels = prepare_kernels();
  place_buffers();
  bind_operands(kernels);
  find_decision();
  prepare_communication();
  find_segments();
}

// By instruction; null for those that communicate.
std::vector<Kernel*> Executor::prepare_kernels() {
  std::unordered_map<std::string, Kernel*> known;
  std::vector<Kernel*> kernels;
  for (const Instruction& instruction : program_.instructions) {
    if (!std::holds_alternative<Compute>(instruction)) {
      kernels.push_back(nullptr);
      continue;
    }
    const auto& compute = std::get<Compute>(instruction);
    std::vector<Layout> inputs, outputs;
    const auto bare = [](const std::vector<Operand>& operands, std::vector<Layout>& layouts) {
      for (const Operand& operand : operands) {
        layouts.push_back(operand.buffer == kAbsent ? Layout{} : operand.layout);
        layouts.back().offset = 0;
      }
    };
    bare(compute.inputs, inputs);
    bare(compute.outputs, outputs);
    const KernelRequest request{*compute.op, compute.attributes, inputs, outputs, compute.accumulate};
    Kernel*& kernel = known[key_of(request)];  // the layers of a model repeat
    if (kernel == nullptr) {
      kernels_.push_back(with_context(
          [&] {
            return program_.scopes[compute.scope].empty() ? std::string(compute.op->name)
                                                          : "layer " + program_.scopes[compute.scope];
          },
          [&] { return state_->device().prepare(request); }));
      kernel = kernels_.back().get();
      memory_.workspace = std::max(memory_.workspace, kernel->workspace_bytes());
    }
    kernels.push_back(kernel);
  }
  return kernels;
}

// Throws Error(environment) where `own` bytes and the state that is not there yet do not fit on the device.
void Executor::require_memory(int64_t own) const {
  const Device& device = state_->device();
  int64_t needed = own;
  for (const BufferSpec& buffer : program_.buffers)
    if (buffer.home == Home::state && !state_->has(buffer.name)) needed += buffer.type.bytes();
  const int64_t budget = device.memory_budget_bytes(), available = device.available_bytes();
  if (needed <= budget) return;
  fail_environment(
      "the model does not fit in memory: it needs {} (state {}, activations {}, other {}), {} are "
      "available on {}{}; a smaller micro-batch, a shorter context or fewer layers would help",
      show_bytes(needed), show_bytes(memory_.state), show_bytes(memory_.arena),
      show_bytes(own - aligned(program_.arena_bytes)), show_bytes(budget), device.name(),
      // Both were read from a machine that moves on: small differences mean nothing.
      available - budget > available / 16
          ? fmt::format(" (of its {}, the rest is promised to other parts of the run)", show_bytes(available))
          : std::string());
}

// One allocation holds all that is not state: activations, then what has a place for itself, then workspace.
void Executor::place_buffers() {
  int64_t own = aligned(program_.arena_bytes) + memory_.workspace;
  for (const BufferSpec& buffer : program_.buffers)
    if (buffer.home == Home::persistent || buffer.home == Home::input || buffer.home == Home::output)
      own += aligned(buffer.type.bytes());
  require_memory(own);
  arena_ = state_->device().allocate(own);
  int64_t next = aligned(program_.arena_bytes);
  for (const BufferSpec& buffer : program_.buffers) {
    switch (buffer.home) {
      case Home::arena:
        buffer_addresses_.push_back(arena_->address() + std::max<int64_t>(buffer.offset, 0));
        break;
      case Home::state:
        used_.push_back({buffer.name, state_->require(buffer).memory});
        buffer_addresses_.push_back(used_.back().memory->address());
        break;
      default: buffer_addresses_.push_back(arena_->address() + next); next += aligned(buffer.type.bytes());
    }
  }
  workspace_ = arena_->address() + next;
  replaced_ = state_->replaced();
  written_.assign(program_.buffers.size(), false);
}

void Executor::bind_operands(const std::vector<Kernel*>& kernels) {
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    Call& call = calls_.emplace_back();
    call.kernel = kernels[i];
    call.first_input = call.first_output = static_cast<int>(addresses_.size());
    if (call.kernel == nullptr) continue;
    const auto& compute = std::get<Compute>(instruction);
    for (const Operand& operand : compute.inputs) addresses_.push_back(address(operand));
    call.first_output = static_cast<int>(addresses_.size());
    for (const Operand& operand : compute.outputs) addresses_.push_back(address(operand));
    if (compute.phase == Phase::update && static_cast<int>(i) >= program_.prologue && first_update_ < 0)
      first_update_ = static_cast<int>(i);
  }
  if (first_update_ < 0) first_update_ = static_cast<int>(calls_.size());
}

void Executor::find_decision() {
  first_gather_ = first_gather(program_);
  const auto* await = !program_.trains || program_.decided == 0
                          ? nullptr
                          : std::get_if<Await>(&program_.instructions[program_.decided - 1]);
  if (await != nullptr) {
    deciding_start_ = await->start;
    deciding_ = &std::get<Start>(program_.instructions[static_cast<size_t>(await->start)]);
  }
  std::map<BufferId, int> last_write;
  for (int i = first_gather_; i < static_cast<int>(program_.instructions.size()); ++i)
    visit_operands(program_, program_.instructions[static_cast<size_t>(i)],
                   [&](const Operand& operand, Use use) {
                     if (use == Use::write || use == Use::yield) last_write[operand.buffer] = i;
                   });
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    const BufferSpec& buffer = program_.buffers[b];
    if (!buffer.updates) continue;
    gathered_.push_back({buffer.name, last_write.at(static_cast<BufferId>(b))});
    updated_.emplace(buffer.name, *buffer.updates);
  }
}

// Operations are prepared in the order of the program, groups in the order of its list.
void Executor::prepare_communication() {
  if (program_.groups.empty()) return;
  if (groups_ == nullptr) fail_usage("the program is one of several ranks'; it needs a cluster to run in");
  Device& device = state_->device();
  std::vector<Communicator*> communicators;
  std::vector<bool> direct;  // from device to device
  for (const Group& group : program_.groups) {
    Communicator* way = groups_->direct(group.ranks, state_->shared_device());
    direct.push_back(way != nullptr);
    communicators.push_back(way != nullptr ? way : &groups_->group(group.ranks));
  }
  for (size_t i = 0; i < program_.instructions.size(); ++i) {
    if (const auto* start = std::get_if<Start>(&program_.instructions[i])) {
      Communicator& group = *communicators[start->group];
      collectives_.push_back(group.prepare(start->request));
      calls_[i].stream_ordered = direct[start->group];
      if (!direct[start->group] && device.has_own_memory())
        collectives_.back() = make_staged(std::move(collectives_.back()), group, device);
      calls_[i].collective = collectives_.back().get();
      calls_[i].starts = true;
      calls_[i].sent_bytes = sent_bytes(start->request, group.rank(), group.size());
      sent_bytes_ += calls_[i].sent_bytes;
      calls_[i].first_input = static_cast<int>(addresses_.size());
      addresses_.push_back(address(start->in));
      addresses_.push_back(address(start->out));
    } else if (const auto* await = std::get_if<Await>(&program_.instructions[i])) {
      calls_[i].collective = calls_[await->start].collective;
      calls_[i].stream_ordered = calls_[await->start].stream_ordered;
    }
  }
  // Change state only with what has come: the host does not know yet whether a stream-ordered operation is
  // done, and what a lost rank leaves undone would be taken for its result.
  bool unknown = false;
  for (size_t i = 0; i < calls_.size(); ++i) {
    unknown |= calls_[i].stream_ordered && !calls_[i].starts;
    if (static_cast<int>(i) < first_update_ || calls_[i].kernel == nullptr) continue;
    calls_[i].requires_sync = std::exchange(unknown, false);
  }
  for (Communicator* communicator : communicators) communicator->connect();
}

// A segment ends with the prologue, which is left out at times, and one begins with the update, which waits
// for transfers.
void Executor::find_segments() {
  for (int i = 0; i < static_cast<int>(calls_.size()); ++i) {
    const bool follows = i > 0 && calls_[i].kernel != nullptr && calls_[i - 1].kernel != nullptr &&
                         !calls_[i].requires_sync && i != program_.prologue && i != first_update_;
    if (follows)
      segments_.back().end = i + 1;
    else
      segments_.push_back({i, i + 1});
  }
}

Executor::~Executor() = default;

std::byte* Executor::address(const Operand& operand) const {
  if (operand.buffer == kAbsent) return nullptr;
  return buffer_addresses_[operand.buffer] + operand.layout.offset * bytes_of(operand.layout.type.dtype);
}

void Executor::write(const std::string& name, const Tensor& tensor, int microbatch) {
  require_open();
  bool known = false;
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    const BufferSpec& buffer = program_.buffers[b];
    if (buffer.home != Home::input || buffer.name != name) continue;
    known = true;
    if (buffer.microbatch != microbatch && buffer.microbatch >= 0 && microbatch >= 0) continue;
    if (tensor.shape() != buffer.type.shape)
      fail_usage("input '{}' has shape {}, the tensor has shape {}", name, to_string(buffer.type.shape),
                 to_string(tensor.shape()));
    const Tensor packed = tensor.to(buffer.type.dtype);
    state_->device().copy_in(buffer_addresses_[b], packed.bytes(), buffer.type.bytes());
    written_[b] = true;
  }
  if (!known) {
    std::vector<std::string> names;
    for (const BufferSpec& buffer : program_.buffers)
      if (buffer.home == Home::input && buffer.microbatch <= 0) names.push_back(buffer.name);
    fail_usage("the program has no input '{}'; its inputs are: {}", name, fmt::join(names, ", "));
  }
}

// What was dropped since this executor was made, and perhaps made again, is not what it would update.
void Executor::require_state() const {
  if (state_->replaced() == replaced_) return;
  for (const Used& used : used_) {
    const auto entry = state_->entries().find(used.name);
    if (entry == state_->entries().end() || entry->second.memory != used.memory)
      fail_usage("'{}' was dropped from the state: what was made with it cannot run any more", used.name);
  }
}

void Executor::close(std::string why) {
  if (closed_) return;
  state_->device().enter();
  freeze();
  closed_ = std::move(why);
  segments_.clear();
  kernels_.clear();
  used_.clear();
  arena_.reset();
}

void Executor::require_open() const {
  if (closed_) fail_usage("the executor is closed: {}", *closed_);
}

void Executor::require_inputs() const {
  require_open();
  if (frozen_) fail_usage("the executor is frozen: the generation of the run that it belongs to has ended");
  require_state();
  for (size_t b = 0; b < program_.buffers.size(); ++b)
    if (program_.buffers[b].home == Home::input && !written_[b])
      fail_usage("input '{}'{} was never written", program_.buffers[b].name,
                 program_.buffers[b].microbatch < 0
                     ? std::string()
                     : fmt::format(" of micro-batch {}", program_.buffers[b].microbatch + 1));
}

void Executor::launch(const Call& call) {
  if (call.collective != nullptr) {
    if (!call.starts) {
      const auto begin = std::chrono::steady_clock::now();
      call.collective->wait();
      const double seconds = seconds_since(begin);
      waited_ += seconds;
      if (is_message(call.collective->request().kind)) bubble_ += seconds;
      return;
    }
    if (!call.stream_ordered) state_->device().synchronize();
    return call.collective->start(addresses_[call.first_input], addresses_[call.first_input + 1]);
  }
  synchronize_before(call);
  run_kernel(call);
}

void Executor::synchronize_before(const Call& call) {
  if (!call.requires_sync) return;
  const auto begin = std::chrono::steady_clock::now();
  state_->device().synchronize();
  waited_ += seconds_since(begin);
}

void Executor::run_kernel(const Call& call) {
  call.kernel->run({addresses_.data() + call.first_input, addresses_.data() + call.first_output, workspace_,
                    memory_.workspace});
}

// Returns the first instruction: the prologue is skipped while the state has not changed.
int Executor::begin_run() {
  advanced_ = false;
  begun_revision_ = state_->revision();
  return next_ = prologue_revision_ == begun_revision_ ? program_.prologue : 0;
}

// Whether the step ends before `instruction`: no other rank waits for it, and nothing has been updated.
bool Executor::asked_to_stop(int instruction) const {
  return instruction < first_update_ && collectives_.empty() && stop_.load(std::memory_order_relaxed);
}

// False when stopped.
bool Executor::launch(Segment& segment) {
  if (asked_to_stop(segment.begin)) return false;
  if (segment.begin == first_update_) state_->await_copies();
  const Call& first = calls_[segment.begin];
  if (segment.begin == deciding_start_) write_word();
  if (first.kernel == nullptr) {
    if (before_each_) before_each_(segment.begin);
    launch(first);
    next_ = segment.end;
    return true;
  }
  synchronize_before(first);
  if (segment.begin == program_.decided) keep_decision();
  if (segment.recording != nullptr && !before_each_) {
    segment.recording->replay();
  } else {
    for (int i = segment.begin; i < segment.end; ++i) {
      if (asked_to_stop(i)) return false;
      if (before_each_) before_each_(i);
      run_kernel(calls_[i]);
      next_ = i + 1;
    }
  }
  next_ = segment.end;
  segment.has_run = true;
  return true;
}

// After a step, when nothing is under way that other ranks could wait for. Kernels that have not run yet may
// have to load their code, which cannot be recorded.
void Executor::record() {
  bool whole = true;
  for (Segment& segment : segments_) {
    whole &= segment.has_run || calls_[segment.begin].kernel == nullptr;
    if (!segment.has_run || segment.recording != nullptr || segment.end - segment.begin < 2) continue;
    segment.recording = state_->device().record([&] {
      for (int i = segment.begin; i < segment.end; ++i) run_kernel(calls_[i]);
    });
  }
  recorded_ = whole;
}

bool Executor::run() {
  require_inputs();
  state_->device().enter();
  const auto began = std::chrono::steady_clock::now();
  waited_ = bubble_ = 0;
  const int begin = begin_run();
  for (Segment& segment : segments_) {
    if (segment.begin == first_gather_) advance_state();
    if (segment.begin < begin || launch(segment)) continue;
    stop_.store(false);
    return false;
  }
  state_->device().synchronize();
  finish_run(seconds_since(began));
  if (!recorded_) record();
  stop_.store(false);  // asked for too late
  return true;
}

void Executor::write_word() {
  if (!word_) return;
  const TensorType type{deciding_->in.layout.type.dtype, {}};
  Tensor number(type);
  number.set(0, static_cast<double>(word_()));
  const int64_t last = deciding_->in.layout.type.elements() - 1;
  state_->device().copy_in(address(deciding_->in) + last * bytes_of(type.dtype), number.bytes(),
                           type.bytes());
}

std::vector<uint32_t> Executor::words() const {
  std::vector<uint32_t> words;
  if (deciding_ == nullptr && word_) return {word_()};
  if (!decision_) return words;
  const int64_t numbers = decision_->numbers.shape()[1];
  for (int64_t i = numbers - 1; i < decision_->numbers.elements(); i += numbers)
    words.push_back(static_cast<uint32_t>(decision_->numbers.at(i)));
  return words;
}

// Another rank may need the numbers when this one's next step has taken their memory.
void Executor::keep_decision() {
  if (deciding_ == nullptr) return;
  const Operand& numbers = deciding_->out;
  if (!decision_) decision_.emplace(StepDecision{0, Tensor(numbers.layout.type)});
  state_->device().copy_out(decision_->numbers.bytes(), address(numbers), numbers.layout.type.bytes());
  decision_->step = state_->version().step + 1;
}

void Executor::finish(const StepDecision& decision) {
  require_open();
  const Operand* const numbers = deciding_ == nullptr ? nullptr : &deciding_->out;
  if (numbers == nullptr || next_ != program_.decided - 1)
    fail_usage("the last run ended at instruction {}; one that ends at {} can be finished", next_,
               program_.decided - 1);
  if (decision.step != state_->version().step + 1)
    fail_usage("the decision is that of step {}, the step to finish is {}", decision.step,
               state_->version().step + 1);
  if (decision.numbers.type() != numbers->layout.type)
    fail_usage("the numbers that decide a step are {}, not {}", to_string(numbers->layout.type),
               to_string(decision.numbers.type()));
  Device& device = state_->device();
  device.enter();
  device.synchronize();
  device.copy_in(address(*numbers), decision.numbers.bytes(), numbers->layout.type.bytes());
  state_->await_copies();
  for (next_ = program_.decided; next_ < first_gather_; ++next_) run_kernel(calls_[next_]);
  device.synchronize();
  advance_state();
}

void Executor::freeze() {
  if (std::exchange(frozen_, true)) return;
  state_->device().enter();
  try {
    state_->device().synchronize();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) throw;  // what broke the step off
  }
  collectives_.clear();
  groups_.reset();
  if (!advanced_) return;
  for (const Gathered& each : gathered_)
    if (each.complete < next_) state_->complete(each.name);
}

// The step is decided, and this rank's part of its update is made.
void Executor::advance_state() {
  if (!program_.trains || std::exchange(advanced_, true)) return;
  state_->advance(updated_);
}

// A step is done, after `seconds`.
void Executor::finish_run(double seconds) {
  ++usage_.runs;
  usage_.seconds += seconds;
  usage_.waited += waited_;
  usage_.bubble += bubble_;
  usage_.sent_bytes += sent_bytes_;
  prologue_revision_ = begun_revision_;
  advance_state();
  for (const Gathered& each : gathered_) state_->complete(each.name);
  advanced_ = false;
}

Executor::Repeats Executor::repeat(std::vector<int> times) {
  require_open();
  HET_REQUIRE(times.size() == calls_.size() && usage_.runs > 0, times.size(), calls_.size(), usage_.runs);
  Repeats repeats{std::move(times), {}};
  state_->device().enter();
  for (size_t i = 0; i < calls_.size(); ++i)
    repeats.recorded.push_back(calls_[i].kernel == nullptr ? nullptr : state_->device().record([&] {
      for (int r = 0; r < repeats.times[i]; ++r) run_kernel(calls_[i]);
    }));
  return repeats;
}

Executor::Repeats Executor::repeats_for(double seconds) {
  if (!collectives_.empty() || state_->device().stopwatch(0) == nullptr) return {};
  std::vector<int> times;
  for (const Span& span : run_timed()) {
    const double once = std::max(span.end - span.begin, seconds / kMostRepeats);
    times.push_back(std::max(1, static_cast<int>(std::ceil(seconds / once))));
  }
  return repeat(std::move(times));
}

std::vector<Executor::Span> Executor::run_timed(const Repeats& repeats,
                                                const std::function<void(size_t)>& before) {
  require_inputs();
  std::vector<Span> spans(calls_.size());
  const auto began = std::chrono::steady_clock::now();
  waited_ = bubble_ = 0;
  const auto seconds = [](std::chrono::steady_clock::time_point time) {
    return seconds_of(time.time_since_epoch());
  };
  begin_run();
  const size_t first = static_cast<size_t>(next_), end = calls_.size();
  Device& device = state_->device();
  device.enter();
  state_->await_copies();
  if (const auto stopwatch = collectives_.empty() ? device.stopwatch(end + 1) : nullptr) {
    const auto recording = [&](size_t i) {
      return repeats.times.empty() ? nullptr : repeats.recorded[i].get();
    };
    const auto times = [&](size_t i) { return repeats.times.empty() ? 1 : repeats.times[i]; };
    const double start = seconds(std::chrono::steady_clock::now());
    for (size_t i = first; i < end; ++i) {
      stopwatch->mark(i);
      if (Recording* const recorded = recording(i))
        recorded->replay();
      else
        for (int r = 0; r < times(i); ++r) launch(calls_[i]);
    }
    stopwatch->mark(end);
    device.synchronize();
    for (size_t i = first; i < end; ++i) {
      const double from = start + stopwatch->seconds(first, i);
      spans[i] = {from, from + stopwatch->seconds(i, i + 1) / times(i)};
      if (const Recording* const recorded = recording(i)) spans[i].launches = recorded->launches() / times(i);
    }
    next_ = static_cast<int>(end);
  } else {
    for (size_t i = first; i < end; ++i) {
      if (next_ == deciding_start_) write_word();
      if (next_ == program_.decided) keep_decision();
      if (next_ == first_gather_) advance_state();
      if (before) before(i);
      spans[i].begin = seconds(std::chrono::steady_clock::now());
      launch(calls_[i]);
      device.synchronize();
      spans[i].end = seconds(std::chrono::steady_clock::now());
      next_ = static_cast<int>(i) + 1;
    }
  }
  for (size_t i = 0; i < calls_.size(); ++i)
    if (calls_[i].starts) {
      spans[i].arrived = seconds(calls_[i].collective->times().finished);
      spans[i].sent_bytes = calls_[i].sent_bytes;
    }
  finish_run(seconds_since(began));
  return spans;
}

Tensor Executor::copy_of(BufferId buffer) const {
  Tensor result(program_.buffers[buffer].type);
  state_->device().copy_out(result.bytes(), buffer_addresses_[buffer], result.type().bytes());
  return result;
}

Tensor Executor::read(const std::string& output) const {
  require_open();
  std::vector<std::string> names;
  for (size_t b = 0; b < program_.buffers.size(); ++b) {
    if (program_.buffers[b].home != Home::output) continue;
    if (program_.buffers[b].name == output) return copy_of(static_cast<BufferId>(b));
    names.push_back(program_.buffers[b].name);
  }
  fail_usage("the program has no output '{}'; its outputs are: {}", output, fmt::join(names, ", "));
}

std::string Executor::find_non_finite() {
  require_inputs();
  state_->device().enter();
  const CopyOfBuffer copy = [this](BufferId buffer) { return copy_of(buffer); };
  std::string found = non_finite_operand(program_, copy);
  // Other ranks wait for this one's collectives, found or not: the walk goes on to the end. Collectives of
  // the backward pass may be awaited in the midst of the update.
  const auto& instructions = program_.instructions;
  for (int i = 0; i < static_cast<int>(calls_.size()); ++i) {
    const auto* compute = std::get_if<Compute>(&instructions[i]);
    const auto* await = std::get_if<Await>(&instructions[i]);
    const auto* start = std::get_if<Start>(&instructions[await == nullptr ? i : await->start]);
    const Phase phase = compute != nullptr ? compute->phase : start->phase;
    if (phase == Phase::update && i >= program_.prologue) continue;
    launch(calls_[i]);
    state_->device().synchronize();
    if (!found.empty()) continue;
    if (compute != nullptr)
      found = non_finite_result(
          program_, *compute, state_->device(),
          std::span(addresses_).subspan(static_cast<size_t>(calls_[i].first_input), compute->inputs.size()),
          copy);
    else if (await != nullptr)
      found = non_finite_arrival(*start, copy);
  }
  return found;
}

}  // namespace het
