#include "core/base/wall_time.h"

#include <algorithm>
#include <array>
#include <chrono>

namespace het {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Takes what it reads off the front of a text. After something else than was asked for, all fails.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  int number(size_t digits) {
    int value = 0;
    for (const char c : take(digits)) {
      good_ = good_ && is_digit(c);
      value = 10 * value + (c - '0');
    }
    return value;
  }
  void literal(std::string_view text) { good_ = take(text.size()) == text && good_; }
  // Which of the names comes next, from 1 on; all are three letters long.
  template <size_t count>
  unsigned one_of(const std::array<std::string_view, count>& names) {
    const auto found = std::find(names.begin(), names.end(), take(3));
    good_ = good_ && found != names.end();
    return static_cast<unsigned>(found - names.begin()) + 1;
  }
  void fraction() {
    if (!rest_.starts_with('.')) return;
    const size_t end = std::min(rest_.find_first_not_of("0123456789", 1), rest_.size());
    good_ = good_ && end > 1;
    rest_.remove_prefix(end);
  }
  bool ended() const { return good_ && rest_.empty(); }

 private:
  std::string_view take(size_t bytes) {
    good_ = good_ && rest_.size() >= bytes;
    if (!good_) return {};
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  bool good_ = true;
};

struct Moment {
  int year = 0;
  unsigned month = 0, day = 0;
  int hour = 0, minute = 0, second = 0;
};

void read_time(Reader& reader, Moment& moment) {
  moment.hour = reader.number(2);
  reader.literal(":");
  moment.minute = reader.number(2);
  reader.literal(":");
  moment.second = reader.number(2);
}

bool read_iso(std::string_view text, Moment& moment) {
  Reader reader(text);
  moment.year = reader.number(4);
  reader.literal("-");
  moment.month = static_cast<unsigned>(reader.number(2));
  reader.literal("-");
  moment.day = static_cast<unsigned>(reader.number(2));
  reader.literal("T");
  read_time(reader, moment);
  reader.fraction();
  reader.literal("Z");
  return reader.ended();
}

bool read_http(std::string_view text, Moment& moment) {
  constexpr std::array<std::string_view, 7> kDays{"Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"};
  constexpr std::array<std::string_view, 12> kMonths{"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  Reader reader(text);
  reader.one_of(kDays);
  reader.literal(", ");
  moment.day = static_cast<unsigned>(reader.number(2));
  reader.literal(" ");
  moment.month = reader.one_of(kMonths);
  reader.literal(" ");
  moment.year = reader.number(4);
  reader.literal(" ");
  read_time(reader, moment);
  reader.literal(" GMT");
  return reader.ended();
}

}  // namespace

std::optional<int64_t> parse_utc(std::string_view text) {
  using namespace std::chrono;
  Moment m;
  if (!read_iso(text, m) && !read_http(text, m)) return std::nullopt;
  const year_month_day date{year(m.year), month(m.month), day(m.day)};
  constexpr int kLeapSecond = 60;
  if (!date.ok() || m.hour > 23 || m.minute > 59 || m.second > kLeapSecond) return std::nullopt;
  const int64_t days = sys_days(date).time_since_epoch().count();
  return ((days * 24 + m.hour) * 60 + m.minute) * 60 + m.second;
}

double seconds_until(int64_t utc_seconds) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<double>(utc_seconds) - std::chrono::duration<double>(now).count();
}

}  // namespace het
