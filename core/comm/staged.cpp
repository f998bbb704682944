#include "core/comm/staged.h"

namespace het {
namespace {

class Staged final : public Collective {
 public:
  Staged(std::unique_ptr<Collective> inner, const Communicator& group, Device& device)
      : inner_(std::move(inner)), device_(device) {
    const CollectiveRequest& asked = inner_->request();
    const int64_t width = bytes_of(asked.dtype);
    in_bytes_ = input_elements(asked, group.rank(), group.size()) * width;
    out_bytes_ = output_elements(asked, group.rank(), group.size()) * width;
    in_ = device.allocate_staging(in_bytes_);
    out_ = device.allocate_staging(out_bytes_);
  }

  // Operands may share memory; here they are apart, which every kind allows.
  void start(const std::byte* in, std::byte* out) override {
    to_ = out;
    if (in_bytes_ > 0)
      device_.copy_out(in_->address(), in, in_bytes_);
    else
      device_.synchronize();  // what came last time may be on its way from out_
    inner_->start(in_->address(), out_->address());
  }
  bool done() const override { return inner_->done(); }
  void wait() override {
    inner_->wait();
    if (out_bytes_ > 0) device_.copy_in(to_, out_->address(), out_bytes_);
  }
  const CollectiveRequest& request() const override { return inner_->request(); }
  CollectiveTimes times() const override { return inner_->times(); }

 private:
  std::unique_ptr<Memory> in_, out_;  // of the host; they outlive the operation that uses them
  std::unique_ptr<Collective> inner_;
  Device& device_;
  int64_t in_bytes_ = 0, out_bytes_ = 0;
  std::byte* to_ = nullptr;
};

}  // namespace

std::unique_ptr<Collective> make_staged(std::unique_ptr<Collective> inner, const Communicator& group,
                                        Device& device) {
  return std::make_unique<Staged>(std::move(inner), group, device);
}

}  // namespace het
