#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "kernels/reference/families.h"
#include "kernels/reference/operands.h"

namespace het::reference {
namespace {

int64_t ignored(const KernelRequest& request) { return request.attributes.get<int64_t>("ignore", -100); }

int64_t label_of(const View& labels, int64_t row, int64_t ignore, int64_t classes) {
  const int64_t label = static_cast<int64_t>(labels[row]);
  if (label != ignore && (label < 0 || label >= classes))
    fail_usage("label {} of row {} is outside the {} classes", label, row, classes);
  return label;
}

template <typename Logit>
double log_sum_exp(int64_t classes, const Logit& logit) {
  double most = -std::numeric_limits<double>::infinity(), total = 0;
  for (int64_t j = 0; j < classes; ++j) most = std::max(most, logit(j));
  if (std::isinf(most) && most < 0) return most;  // all are masked: a part of the classes may be
  for (int64_t j = 0; j < classes; ++j) total += std::exp(logit(j) - most);
  return most + std::log(total);
}

// loss = scale * sum over rows of (lse - logit[label]), rows whose label is `ignore` left out.
std::unique_ptr<Kernel> cross_entropy(const KernelRequest& request) {
  return kernel_of(request, [ignore = ignored(request)](const Operands& o) {
    const View logits = o.in(0), labels = o.in(1), scale = o.in(2), loss = o.out(0), lses = o.out(1);
    const int64_t classes = logits.size(-1), rows = leading(logits.layout(), 1);
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double lse = log_sum_exp(classes, [&](int64_t j) { return logits[r * classes + j]; });
      const int64_t label = label_of(labels, r, ignore, classes);
      if (label != ignore) total += lse - logits[r * classes + label];
      lses.set(r, lse);
    }
    loss.set(0, scale[0] * total);
  });
}

// dlogits = dloss * scale * (softmax(logits) - one_hot(label)); zero where ignored.
std::unique_ptr<Kernel> cross_entropy_gradient(const KernelRequest& request) {
  return kernel_of(request, [ignore = ignored(request)](const Operands& o) {
    const View dloss = o.in(0), logits = o.in(1), labels = o.in(2), scale = o.in(3), lse = o.in(4);
    const View dlogits = o.out(0);
    const int64_t classes = logits.size(-1), rows = leading(logits.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t label = label_of(labels, r, ignore, classes);
      for (int64_t j = 0; j < classes; ++j) {
        const double p = std::exp(logits[r * classes + j] - lse[r]);
        dlogits.set(r * classes + j, label == ignore ? 0 : dloss[0] * scale[0] * (p - (j == label ? 1 : 0)));
      }
    }
  });
}

// y = logit[label] - log sum exp of each row, 0 where the label is ignored.
std::unique_ptr<Kernel> log_probability(const KernelRequest& request) {
  return kernel_of(request, [ignore = ignored(request)](const Operands& o) {
    const View logits = o.in(0), labels = o.in(1);
    const int64_t classes = logits.size(-1), rows = leading(logits.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      const double lse = log_sum_exp(classes, [&](int64_t j) { return logits[r * classes + j]; });
      const int64_t label = label_of(labels, r, ignore, classes);
      o.out(0).set(r, label == ignore ? 0 : logits[r * classes + label] - lse);
      o.out(1).set(r, lse);
    }
  });
}

// dlogits = dy * (one_hot(label) - softmax(logits)) of each row; zero where ignored.
std::unique_ptr<Kernel> log_probability_gradient(const KernelRequest& request) {
  return kernel_of(request, [ignore = ignored(request)](const Operands& o) {
    const View dy = o.in(0), logits = o.in(1), labels = o.in(2), lse = o.in(3);
    const int64_t classes = logits.size(-1), rows = leading(logits.layout(), 1);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t label = label_of(labels, r, ignore, classes);
      for (int64_t j = 0; j < classes; ++j) {
        const double p = std::exp(logits[r * classes + j] - lse[r]);
        o.out(0).set(r * classes + j, label == ignore ? 0 : dy[r] * ((j == label ? 1 : 0) - p));
      }
    }
  });
}

// logits[j] = hidden[row] . weight[j] + bias[j] of one row, and what is made of them.
struct Classifier {
  View hidden, weight, bias, labels;

  // Operands from `first` on.
  explicit Classifier(const Operands& o, size_t first = 0)
      : hidden(o.in(first)), weight(o.in(first + 1)), bias(o.in(first + 2)), labels(o.in(first + 3)) {}

  int64_t width() const { return weight.size(1); }
  int64_t classes() const { return weight.size(0); }
  int64_t rows() const { return labels.elements(); }
  void logits(int64_t row, double* to) const {
    for (int64_t j = 0; j < classes(); ++j) {
      to[j] = bias.present() ? bias[j] : 0;
      for (int64_t c = 0; c < width(); ++c) to[j] += hidden[row * width() + c] * weight[j * width() + c];
    }
  }
};

std::unique_ptr<Kernel> linear_cross_entropy(const KernelRequest& request) {
  return kernel_of(
      request,
      [ignore = ignored(request)](const Operands& o) {
        const Classifier head(o);
        double total = 0;
        double* logits = o.scratch();  // [classes]
        for (int64_t r = 0; r < head.rows(); ++r) {
          const int64_t label = label_of(head.labels, r, ignore, head.classes());
          if (label == ignore) continue;
          head.logits(r, logits);
          total += log_sum_exp(head.classes(), [&](int64_t j) { return logits[j]; }) - logits[label];
        }
        o.out(0).set(0, o.in(4)[0] * total);
      },
      request.inputs[1].type.shape[0]);
}

// dhidden = dlogits weight, dweight = dlogits^T hidden, dbias = sum over rows of dlogits[rows, classes].
void set_gradients(const Classifier& head, const double* dlogits, const View& dhidden, const View& dweight,
                   const View& dbias) {
  const int64_t classes = head.classes(), width = head.width(), rows = head.rows();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < classes; ++j) sum += dlogits[r * classes + j] * head.weight[j * width + c];
      dhidden.set(r * width + c, sum);
    }
  for (int64_t j = 0; j < classes; ++j) {
    for (int64_t c = 0; c < width; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += dlogits[r * classes + j] * head.hidden[r * width + c];
      dweight.set(j * width + c, sum);
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += dlogits[r * classes + j];
    dbias.set(j, sum);
  }
}

// The loss and, with dlogits = scale * (softmax - one_hot), the gradients.
std::unique_ptr<Kernel> linear_cross_entropy_training(const KernelRequest& request) {
  const int64_t scratch = request.inputs[3].type.elements() * request.inputs[1].type.shape[0];
  return kernel_of(
      request,
      [ignore = ignored(request)](const Operands& o) {
        const Classifier head(o);
        const int64_t classes = head.classes(), rows = head.rows();
        double* dlogits = o.scratch();  // [rows, classes]
        double total = 0;
        for (int64_t r = 0; r < rows; ++r) {
          double* row = dlogits + r * classes;
          const int64_t label = label_of(head.labels, r, ignore, classes);
          if (label == ignore) {
            std::fill(row, row + classes, 0.0);
            continue;
          }
          head.logits(r, row);
          const double lse = log_sum_exp(classes, [&](int64_t j) { return row[j]; });
          total += lse - row[label];
          for (int64_t j = 0; j < classes; ++j)
            row[j] = o.in(4)[0] * (std::exp(row[j] - lse) - (j == label ? 1 : 0));
        }
        o.out(0).set(0, o.in(4)[0] * total);
        set_gradients(head, dlogits, o.out(1), o.out(2), o.out(3));
      },
      scratch);
}

// The part of the classes that a classifier holds: [first, first + classes held) of `of`.
struct Part {
  int64_t first, of, ignore;
  explicit Part(const KernelRequest& request, size_t classifier = 0)  // where its operands begin
      : first(request.attributes.get<int64_t>("first", 0)),
        of(request.attributes.get<int64_t>("of", request.inputs[classifier + 1].type.shape[0])),
        ignore(ignored(request)) {}
  // The label of a row, counted from `first`; -1 where it is ignored or lies in another part.
  int64_t label(const Classifier& head, int64_t row) const {
    const int64_t label = label_of(head.labels, row, ignore, of);
    return label == ignore || label < first || label >= first + head.classes() ? -1 : label - first;
  }
};

// Of each row: log sum exp of the logits here; the logit of its label, 0 where that is not here.
std::unique_ptr<Kernel> linear_log_sum_exp(const KernelRequest& request) {
  return kernel_of(
      request,
      [part = Part(request)](const Operands& o) {
        const Classifier head(o);
        double* logits = o.scratch();  // [classes]
        for (int64_t r = 0; r < head.rows(); ++r) {
          head.logits(r, logits);
          o.out(0).set(r, log_sum_exp(head.classes(), [&](int64_t j) { return logits[j]; }));
          const int64_t label = part.label(head, r);
          o.out(0).set(head.rows() + r, label < 0 ? 0 : logits[label]);
        }
      },
      request.inputs[1].type.shape[0]);
}

std::unique_ptr<Kernel> cross_entropy_of_parts(const KernelRequest& request) {
  return kernel_of(request, [ignore = ignored(request)](const Operands& o) {
    const View given = o.in(0), labels = o.in(1), scale = o.in(2);
    const int64_t parts = given.size(0), rows = given.size(2);
    double total = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const double lse = log_sum_exp(parts, [&](int64_t p) { return given[2 * p * rows + r]; });
      double logit = 0;
      for (int64_t p = 0; p < parts; ++p) logit += given[(2 * p + 1) * rows + r];
      const double loss = static_cast<int64_t>(labels[r]) == ignore ? 0 : lse - logit;
      total += loss;
      o.out(1).set(r, lse);
      o.out(2).set(r, loss);
    }
    o.out(0).set(0, scale[0] * total);
  });
}

// The gradients of the classes here, with dlogits = factor * (exp(logit - lse) - one_hot(label)) of each row
// that counts; `first` is the operand where the classifier begins.
std::unique_ptr<Kernel> classifier_gradient(const KernelRequest& request, size_t first,
                                            double (*factor)(const Operands& o, int64_t row)) {
  const int64_t scratch = request.inputs[first + 3].type.elements() * request.inputs[first + 1].type.shape[0];
  return kernel_of(
      request,
      [part = Part(request, first), first, factor](const Operands& o) {
        const Classifier head(o, first);
        const View lse = o.in(5);
        double* dlogits = o.scratch();  // [rows, classes]
        for (int64_t r = 0; r < head.rows(); ++r) {
          double* row = dlogits + r * head.classes();
          head.logits(r, row);
          const bool counts = static_cast<int64_t>(head.labels[r]) != part.ignore;
          const int64_t label = part.label(head, r);
          for (int64_t j = 0; j < head.classes(); ++j)
            row[j] = counts ? factor(o, r) * (std::exp(row[j] - lse[r]) - (j == label ? 1 : 0)) : 0;
        }
        set_gradients(head, dlogits, o.out(0), o.out(1), o.out(2));
      },
      scratch);
}

std::unique_ptr<Kernel> linear_cross_entropy_gradient(const KernelRequest& request) {
  return classifier_gradient(request, 0, [](const Operands& o, int64_t) { return o.in(4)[0]; });
}

std::unique_ptr<Kernel> linear_log_probability_gradient(const KernelRequest& request) {
  return classifier_gradient(request, 1, [](const Operands& o, int64_t row) { return -o.in(0)[row]; });
}

// y = logit[label] - lse of each row, 0 where the label is ignored.
std::unique_ptr<Kernel> linear_log_probability(const KernelRequest& request) {
  return kernel_of(
      request,
      [part = Part(request)](const Operands& o) {
        const Classifier head(o);
        double* logits = o.scratch();  // [classes]
        for (int64_t r = 0; r < head.rows(); ++r) {
          head.logits(r, logits);
          const double lse = log_sum_exp(head.classes(), [&](int64_t j) { return logits[j]; });
          const int64_t label = part.label(head, r);
          o.out(0).set(r, label < 0 ? 0 : logits[label] - lse);
          o.out(1).set(r, lse);
        }
      },
      request.inputs[1].type.shape[0]);
}

}  // namespace

std::vector<KernelEntry> loss_kernels() {
  return {{"cross_entropy", cross_entropy},
          {"cross_entropy_gradient", cross_entropy_gradient},
          {"log_probability", log_probability},
          {"log_probability_gradient", log_probability_gradient},
          {"linear_cross_entropy", linear_cross_entropy},
          {"linear_cross_entropy_training", linear_cross_entropy_training},
          {"linear_log_sum_exp", linear_log_sum_exp},
          {"cross_entropy_of_parts", cross_entropy_of_parts},
          {"linear_cross_entropy_gradient", linear_cross_entropy_gradient},
          {"linear_log_probability", linear_log_probability},
          {"linear_log_probability_gradient", linear_log_probability_gradient}};
}

}  // namespace het::reference
