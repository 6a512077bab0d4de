// While it lives, what is logged goes nowhere.
#pragma once

#include <string_view>

#include "core/logging.h"

namespace percheron::tests {

class QuietLog final : public LogSink {
  public:
    QuietLog() : before_(set_log_sink(this)) {}
    ~QuietLog() override { set_log_sink(before_); }
    void write(LogLevel, std::string_view) override {}

  private:
    LogSink* before_;
};

}  // namespace percheron::tests
