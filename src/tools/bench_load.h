// A load client: many streamed chat completions at once over loopback or a network, on one thread.
// Every stream's text is checked against what it must be, so that a fast wrong server does not
// pass.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"

namespace percheron::tools {

struct LoadTest {
    std::string host = "127.0.0.1";
    std::uint16_t port = 8000;
    std::string api_key;
    std::string body;             // of each request; must ask for a stream with usage
    std::uint32_t streams = 256;  // requests, all open at once
    std::optional<std::string> expected_content;  // of every stream
    // What every request waits by the server's own account before its first token: a replay's
    // prefill_ms.  Counts for no stream.
    std::chrono::milliseconds prefill{0};
    int server_process = 0;             // its CPU time is read from /proc; 0: not
    std::chrono::seconds patience{60};  // silence on all streams that ends the test
};

struct LoadReport {
    std::uint32_t streams = 0;
    std::uint32_t failed = 0;   // streams that were refused, cut or gave another text
    std::string first_failure;  // what was wrong with the first of them
    std::uint64_t events = 0;   // events that carry text
    std::uint64_t tokens = 0;   // by the servers' usage
    double seconds = 0;         // from the first event of any stream to the last
    // Slowest rate over the mean of rates, each from request to end without the prefill.
    double slowest_of_mean = 0;
    double events_per_second = 0;
    double tokens_per_second = 0;
    double time_to_first_event_ms[3] = {0, 0, 0};  // median, 90 %, 99 %
    std::optional<double> server_cpu_us_per_event;
};

// Errors: io (no connection, or silence beyond the patience).
Result<LoadReport> run_load_test(const LoadTest& test);

// CPU time a process has used so far, all its threads.
std::optional<double> process_cpu_seconds(int process);

}  // namespace percheron::tools
