// One function object of several, for std::visit: a case for each alternative of a variant. Without a case
// for one of them the call does not compile.
#pragma once

namespace het {

template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace het
