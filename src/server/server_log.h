// The server's log: lines on stderr as text or JSON, written by a thread of its own so that no
// request waits for a terminal or a disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/logging.h"

namespace percheron::server {

enum class LogFormat { text, json };

struct LogField {
    std::string_view name;
    std::variant<std::string, std::uint64_t, double> value;
};

class ServerLog final : public LogSink {
  public:
    explicit ServerLog(LogFormat format);
    ~ServerLog() override;  // writes what is left

    void write(LogLevel level, std::string_view message) override;
    // A line with fields: message and name=value pairs, or one JSON object.
    void write(LogLevel level, std::string_view message, const std::vector<LogField>& fields);

  private:
    struct Implementation;
    std::unique_ptr<Implementation> implementation_;
};

// The line of `fields` as the given format shows it, without time and level.
std::string render_fields(LogFormat format, std::string_view message,
                          const std::vector<LogField>& fields);

}  // namespace percheron::server
