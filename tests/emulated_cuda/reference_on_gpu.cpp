#include "tests/emulated_cuda/reference_on_gpu.h"

#include <functional>
#include <vector>

#include "kernels/cuda/nccl.h"
#include "kernels/reference/device.h"

namespace het::cuda_emulated {
namespace {

class ReferenceOnGpu final : public Device {
 public:
  explicit ReferenceOnGpu(int ordinal) : interconnect_(context_), gpu_(make_device(ordinal)) {
    context_.ordinal = ordinal;
    check(cudaSetDevice(ordinal), "be used");
    check(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "make a stream");
  }
  ~ReferenceOnGpu() override {
    interconnect_.close();
    cudaStreamDestroy(context_.stream);
  }

  std::string name() const override { return "reference on a GPU"; }
  std::unique_ptr<Memory> allocate(int64_t bytes) override { return gpu_->allocate(bytes); }
  std::unique_ptr<Memory> allocate_staging(int64_t bytes) override { return gpu_->allocate_staging(bytes); }
  bool has_own_memory() const override { return true; }
  void enter() override { gpu_->enter(); }
  int64_t available_bytes() const override { return gpu_->available_bytes(); }
  DeviceTransport device_transport() override { return interconnect_.way(); }
  std::shared_ptr<Communicator> connect(std::shared_ptr<Communicator> host) override {
    return interconnect_.connect(std::move(host));
  }
  std::unique_ptr<Kernel> prepare(const KernelRequest& request) override {
    std::shared_ptr<Kernel> kernel = reference_->prepare(request);
    const size_t inputs = request.inputs.size(), outputs = request.outputs.size();
    const int64_t bytes = kernel->workspace_bytes();
    return make_kernel(
        [this, kernel = std::move(kernel), inputs, outputs](const KernelArguments& a) {
          const std::vector<std::byte*> in(a.inputs, a.inputs + inputs), out(a.outputs, a.outputs + outputs);
          const auto step = [=, workspace = a.workspace, bytes = a.workspace_bytes] {
            kernel->run({in.data(), out.data(), workspace, bytes});
            return true;
          };
          if (kept_ != nullptr) return kept_->push_back(step);
          context_.stream->push(step);
        },
        bytes);
  }
  std::unique_ptr<Recording> record(const std::function<void()>& launches) override {
    class Replayed final : public Recording {
     public:
      explicit Replayed(cudaStream_t stream) : stream_(stream) {}
      void replay() override {
        for (const auto& step : steps) stream_->push(step);
      }
      std::vector<std::function<bool()>> steps;

     private:
      cudaStream_t stream_;
    };
    auto recording = std::make_unique<Replayed>(context_.stream);
    kept_ = &recording->steps;
    launches();
    kept_ = nullptr;
    return recording;
  }
  void copy_in(std::byte* to, const std::byte* host, int64_t bytes) override {
    check(cudaMemcpyAsync(to, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, context_.stream),
          "copy");
  }
  void copy_out(std::byte* host, const std::byte* from, int64_t bytes) override {
    check(cudaMemcpyAsync(host, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, context_.stream),
          "copy");
    synchronize();
  }
  void synchronize() override { interconnect_.synchronize(); }

 private:
  Context context_;
  Interconnect interconnect_;
  std::vector<std::function<bool()>>* kept_ = nullptr;  // where a recording keeps what is launched
  std::shared_ptr<Device> gpu_, reference_ = make_reference_device();
};

}  // namespace

std::shared_ptr<Device> make_reference_on_gpu(int ordinal) {
  return std::make_shared<ReferenceOnGpu>(ordinal);
}

}  // namespace het::cuda_emulated
