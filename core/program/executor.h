// Runs a Program on one device: kernels are prepared and all memory is laid out when it is made; a step is a
// walk over a list of ready calls, without allocation. Where the device can record launches, those between
// two operations that reach other ranks are recorded after their first run and replayed as one from then on:
// their addresses never change. Used from one thread, except request_stop().
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "core/comm/groups.h"
#include "core/device/device.h"
#include "core/program/program.h"
#include "core/program/state.h"

namespace het {

// The numbers by which all ranks decided a step: what each gave when it had its gradients, by rank.
struct StepDecision {
  int64_t step = 0;
  Tensor numbers;
};

class Executor {
 public:
  // Prepares every kernel, checks that the device allows the memory (Error(environment) names needed and
  // available bytes, before anything is allocated), then allocates. A program that communicates needs
  // `groups`: all its ranks make their executors in the same order.
  Executor(Program program, std::shared_ptr<StateStore> state, std::shared_ptr<Groups> groups = nullptr);
  ~Executor();

  // Write an input of the coming run: for one micro-batch, or with microbatch -1 for per-step inputs.
  void write(const std::string& name, const Tensor& tensor, int microbatch = -1);
  // Run one step. Throws Error(usage) if an input was never written, Error(peer) when a rank is lost. Returns
  // false when stopped by request_stop() before the update phase: state is then as it was.
  bool run();
  Tensor read(const std::string& output) const;  // a copy of an output of the last run

  // Gives back its memory, kernels and collectives, now. Whatever would use them is an Error(usage) that
  // gives `why`.
  void close(std::string why);

  // --- words to the other ranks, which go round with the numbers that decide a step

  // Called in each step when this rank has its gradients: its word, at most 2^24 - 1, from the thread that
  // runs. None: 0.
  void on_word(std::function<uint32_t()> word) { word_ = std::move(word); }
  // Of all ranks in the last step that they decided together, by rank; empty: none was. A rank that decides
  // alone says its word now.
  std::vector<uint32_t> words() const;

  // --- a run that an error broke off, as the loss of another rank does

  // The last run came as far as the step's decision.
  bool is_decided() const { return next_ >= program_.decided; }
  // All gradients are there, and the step waits for its decision: it can be finished.
  bool awaits_decision() const { return next_ == program_.decided - 1; }
  // Of the last step that ranks decided together; null: none has been.
  const StepDecision* decision() const { return decision_ ? &*decision_ : nullptr; }
  // No more runs: waits for the device and drops the collectives, whose fabric has been aborted. What
  // finish() needs is kept; the state says what of it is at its version.
  void freeze();
  // Make the update of a step that was decided elsewhere and broke off here right before that. Parameters
  // whose update other ranks make stay as they are. Throws Error(usage) if the last run did not break off
  // there, or the decision is another step's.
  void finish(const StepDecision& decision);
  // Called with each instruction of a run before it is done, and what it throws breaks the run off: for
  // tests. Nothing is replayed then.
  void before_each(std::function<void(int instruction)> visit) { before_each_ = std::move(visit); }

  // Run forward and backward again on the same inputs, without the update, checking every result: a sentence
  // naming the first layer and operator that made a NaN or an infinity from finite operands, or what arrived
  // so from another rank; empty: neither. All ranks of a step call it together.
  std::string find_non_finite();

  // Ask the running step, or the coming one, to stop at the next instruction, or behind those that are
  // replayed as one. From any thread or a signal handler. A step that other ranks take part in or that has
  // come to its update goes on to its end.
  void request_stop() { stop_.store(true, std::memory_order_relaxed); }

  // Of all runs so far, timed ones too: how long they took, how much of that was waiting for other ranks, how
  // much of the waiting was for messages (a pipeline's bubbles), and the bytes sent to them
  // (core/comm/steps.h).
  struct Usage {
    int64_t runs = 0, sent_bytes = 0;
    double seconds = 0, waited = 0, bubble = 0;
  };
  const Usage& usage() const { return usage_; }

  const Program& program() const { return program_; }
  MemoryUse memory() const { return memory_; }
  StateStore& state() const { return *state_; }

  // When each instruction of one run began and ended, in seconds of the machine's steady clock, for profiles
  // and traces. What a collective took beside the computation runs from its start's beginning to `arrived`.
  // Slower than run().
  //
  // On a device that has a stopwatch each instruction's kernel is launched so many times as `repeats`
  // say between two moments, so that neither the host nor the moments stand between short kernels; the span
  // is one's share. For measurements alone: what adds to its result does so each time.
  struct Span {
    double begin = 0, end = 0;
    double arrived = 0;      // of a start: when its operation was done
    int launches = 0;        // that its kernel queues, where that was recorded
    int64_t sent_bytes = 0;  // of a start: what this rank sends the others
  };
  struct Repeats {
    std::vector<int> times;                            // of each instruction; empty: one
    std::vector<std::unique_ptr<Recording>> recorded;  // so many launches; null: the device records nothing
  };
  // `before` is called with the index of each instruction, outside its span; not on devices with a stopwatch.
  std::vector<Span> run_timed(const Repeats& repeats = {}, const std::function<void(size_t)>& before = {});

  // So many launches of each instruction, after a first run() of the program, whose memory they use.
  Repeats repeat(std::vector<int> times);
  // As many as last `seconds`, or kMostRepeats; the program is run once for that. Empty where a clock of the
  // host's says as much, or ranks would wait for each other.
  Repeats repeats_for(double seconds);
  static constexpr int kMostRepeats = 200;

 private:
  struct Call;
  struct Segment;
  void launch(const Call& call);
  bool launch(Segment& segment);
  void synchronize_before(const Call& call);
  void run_kernel(const Call& call);
  std::vector<Kernel*> prepare_kernels();
  void place_buffers();
  void require_memory(int64_t own) const;
  void bind_operands(const std::vector<Kernel*>& kernels);
  void find_decision();
  void prepare_communication();
  void find_segments();
  void record();
  bool asked_to_stop(int instruction) const;
  std::byte* address(const Operand& operand) const;
  void require_open() const;
  void require_inputs() const;
  void require_state() const;
  int begin_run();
  void advance_state();
  void finish_run(double seconds);
  Tensor copy_of(BufferId buffer) const;
  void write_word();
  void keep_decision();

  Program program_;
  std::shared_ptr<StateStore> state_;
  MemoryUse memory_;
  Usage usage_;
  int64_t sent_bytes_ = 0;  // in one run
  double waited_ = 0;       // seconds, since the last run began
  double bubble_ = 0;       // of that, for messages
  std::vector<std::unique_ptr<Kernel>> kernels_;
  struct Used {  // an entry of the state
    std::string name;
    std::shared_ptr<Memory> memory;
  };
  std::vector<Used> used_;
  uint64_t replaced_ = 0;  // entries of the state, when these were looked up
  std::unique_ptr<Memory>
      arena_;  // arena, then persistent, inputs, outputs, then workspace; outlives collectives
  std::shared_ptr<Groups> groups_;
  std::vector<std::unique_ptr<Collective>> collectives_;
  std::vector<Call> calls_;
  std::vector<std::byte*> addresses_;  // operands of all calls, one after the other
  std::vector<std::byte*> buffer_addresses_;
  std::byte* workspace_ = nullptr;
  std::vector<Segment> segments_;  // all calls, in their order
  bool recorded_ = false;          // every segment of two calls or more, if the device records
  std::vector<bool> written_;      // of buffers: inputs that have been written
  std::function<void(int)> before_each_;
  std::function<uint32_t()> word_;
  int next_ = 0;
  int first_update_ = -1;  // instruction from which a step can no longer be stopped
  int first_gather_ = 0;
  // The gathering of numbers that decides a step; null: it is not decided together with other ranks.
  const Start* deciding_ = nullptr;
  int deciding_start_ = -1;
  bool advanced_ = false;  // the state, by a run that has not completed it
  bool frozen_ = false;
  std::optional<std::string> closed_;  // why
  std::optional<StepDecision> decision_;
  struct Gathered {  // a parameter that other ranks update in part
    std::string name;
    int complete;  // once this instruction is done
  };
  std::vector<Gathered> gathered_;
  std::map<std::string, TensorSlice> updated_;  // of these, what this rank updates
  // Of the state: when the prologue was last run, and when the last run began.
  uint64_t prologue_revision_ = 0, begun_revision_ = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace het
