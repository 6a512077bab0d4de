#include "core/logging.h"

#include <atomic>
#include <cstdio>

#include "core/visible_text.h"

namespace percheron {
namespace {

class StderrSink final : public LogSink {
  public:
    void write(LogLevel level, std::string_view message) override {
        const char* tag = level == LogLevel::error     ? "error: "
                          : level == LogLevel::warning ? "warning: "
                                                       : "";
        std::fprintf(stderr, "%s%s\n", tag, visible_text(message).c_str());
    }
};

StderrSink stderr_sink;
std::atomic<LogSink*> current_sink{&stderr_sink};

}  // namespace

LogSink* set_log_sink(LogSink* sink) {
    return current_sink.exchange(sink != nullptr ? sink : &stderr_sink);
}

void log(LogLevel level, std::string_view message) {
    current_sink.load(std::memory_order_acquire)->write(level, message);
}

}  // namespace percheron
