#include "server/server_log.h"

#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/visible_text.h"
#include "server/sse.h"

namespace percheron::server {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
    switch (level) {
        case LogLevel::debug:
            return spdlog::level::debug;
        case LogLevel::info:
            return spdlog::level::info;
        case LogLevel::warning:
            return spdlog::level::warn;
        case LogLevel::error:
            return spdlog::level::err;
    }
    return spdlog::level::info;
}

void append_value(std::string& text, LogFormat format, const LogField& field) {
    if (const auto* string = std::get_if<std::string>(&field.value)) {
        const bool plain = format == LogFormat::text && !string->empty() &&
                           string->find_first_of(" \"\\\n\r\t=") == std::string::npos;
        if (plain) {
            text += *string;
        } else {
            append_quoted(text, *string);
        }
    } else if (const auto* integer = std::get_if<std::uint64_t>(&field.value)) {
        append_number(text, *integer);
    } else {
        // Two decimals say all that a log line of rates and times can know.
        char digits[32];
        std::snprintf(digits, sizeof digits, "%.2f", std::get<double>(field.value));
        text += digits;
    }
}

}  // namespace

std::string render_fields(LogFormat format, std::string_view message,
                          const std::vector<LogField>& fields) {
    std::string text;
    if (format == LogFormat::text) {
        append_escaped(text, message);
        for (const LogField& field : fields) {
            text += ' ';
            text += field.name;
            text += '=';
            append_value(text, format, field);
        }
        return visible_text(text);
    }
    text += "\"message\":";
    append_quoted(text, message);
    for (const LogField& field : fields) {
        text += ",\"";
        text += field.name;
        text += "\":";
        append_value(text, format, field);
    }
    return text;
}

struct ServerLog::Implementation {
    LogFormat format;
    std::shared_ptr<spdlog::details::thread_pool> writer;
    std::shared_ptr<spdlog::async_logger> logger;
};

ServerLog::ServerLog(LogFormat format) : implementation_(std::make_unique<Implementation>()) {
    auto& log = *implementation_;
    log.format = format;
    log.writer = std::make_shared<spdlog::details::thread_pool>(8192, 1);
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    // When the reader of the log is slower than the server, the oldest lines go.
    log.logger = std::make_shared<spdlog::async_logger>(
        "percheron", sink, log.writer, spdlog::async_overflow_policy::overrun_oldest);
    log.logger->set_level(spdlog::level::info);
    log.logger->flush_on(spdlog::level::info);
    log.logger->set_pattern(format == LogFormat::text
                                ? "%Y-%m-%d %H:%M:%S.%e %l %v"
                                : R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})");
}

ServerLog::~ServerLog() {
    // The writer first: it has ended, every line written, before what it writes with goes.
    implementation_->writer.reset();
    implementation_->logger.reset();
}

void ServerLog::write(LogLevel level, std::string_view message) {
    write(level, message, {});
}

void ServerLog::write(LogLevel level, std::string_view message,
                      const std::vector<LogField>& fields) {
    const std::string line = render_fields(implementation_->format, message, fields);
    implementation_->logger->log(spdlog_level(level), spdlog::string_view_t(line));
}

}  // namespace percheron::server
