#include "core/io/saving.h"

#include <utility>

#include "core/base/error.h"
#include "core/io/file.h"

namespace het {
namespace {

void remove_staged(const std::vector<SavedFile>& files) {
  for (auto file = files.rbegin(); file != files.rend(); ++file) try {
      drop_staged(file->path);
    } catch (const Error&) {  // the failure that led here says more
    }
}

void write_all(const std::vector<SavedFile>& files) {
  try {
    for (const SavedFile& file : files) file.stage();
  } catch (...) {
    remove_staged(files);
    throw;
  }
  for (const SavedFile& file : files) commit_staged(file.path);
}

}  // namespace

Saving::Saving(std::vector<SavedFile> files) : files_(std::move(files)) {
  thread_ = std::thread([this] {
    try {
      write_all(files_);
    } catch (...) {
      failure_ = std::current_exception();
    }
    files_.clear();  // with what they hold
    done_.store(true, std::memory_order_release);
  });
}

Saving::~Saving() {
  if (thread_.joinable()) thread_.join();
}

void Saving::wait() {
  if (thread_.joinable()) thread_.join();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace het
