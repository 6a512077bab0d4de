// The logger's interface.  Code below the server logs through this and knows no library; the
// server installs a sink that prints text or JSON.  Until then lines go to stderr as text.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace percheron {

enum class LogLevel { debug, info, warning, error };

class LogSink {
  public:
    virtual ~LogSink() = default;
    // Called from any thread; one call is one line.
    virtual void write(LogLevel level, std::string_view message) = 0;
};

// Installs `sink` (not owned, must outlive all logging) and returns the one before; nullptr
// restores the default.
LogSink* set_log_sink(LogSink* sink);
void log(LogLevel level, std::string_view message);

inline void log_info(std::string_view message) {
    log(LogLevel::info, message);
}
inline void log_warning(std::string_view message) {
    log(LogLevel::warning, message);
}
inline void log_error(std::string_view message) {
    log(LogLevel::error, message);
}

}  // namespace percheron
