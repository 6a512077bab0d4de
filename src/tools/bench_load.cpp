#include "tools/bench_load.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/event_stream_reader.h"
#include "tools/http_client.h"

namespace percheron::tools {
namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration time) {
    return std::chrono::duration<double>(time).count();
}

struct Stream {
    Descriptor socket;
    EventStreamReader reader;
    std::uint64_t events = 0;
    Clock::time_point sent;
    Clock::time_point first;
    Clock::time_point last;
    bool open = true;
    std::string problem;
};

std::string request_bytes(const LoadTest& test) {
    std::string bytes = "POST /v1/chat/completions HTTP/1.1\r\nHost: " + test.host + ":" +
                        std::to_string(test.port) + "\r\n";
    if (!test.api_key.empty()) bytes += "Authorization: Bearer " + test.api_key + "\r\n";
    bytes +=
        "Content-Type: application/json\r\nContent-Length: " + std::to_string(test.body.size()) +
        "\r\n\r\n" + test.body;
    return bytes;
}

// Reads what has come on one stream; closes it when it has ended.
void read_stream(Stream& stream, char* scratch, std::size_t size) {
    const ssize_t count = ::recv(stream.socket.get(), scratch, size, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
        stream.open = false;
        stream.problem = "the connection was cut";
        return;
    }
    const std::uint32_t events =
        stream.reader.feed(std::string_view(scratch, static_cast<std::size_t>(count)));
    if (events > 0) {
        const Clock::time_point now = Clock::now();
        if (stream.events == 0) stream.first = now;
        stream.last = now;
        stream.events += events;
    }
    if (stream.reader.state() == EventStreamReader::State::broken) {
        stream.open = false;
        stream.problem = stream.reader.problem();
    } else if (stream.reader.state() == EventStreamReader::State::ended) {
        stream.open = false;
    }
}

void judge(Stream& stream, const LoadTest& test) {
    if (!stream.problem.empty()) return;
    if (!stream.reader.done() || !stream.reader.finished()) {
        stream.problem = "the stream ended without its finish or [DONE]";
    } else if (test.expected_content && stream.reader.content() != *test.expected_content) {
        stream.problem = "the text is not what was expected";
    }
}

LoadReport summarise(const std::vector<Stream>& streams, std::chrono::milliseconds prefill) {
    LoadReport report;
    report.streams = static_cast<std::uint32_t>(streams.size());
    Clock::time_point first = Clock::time_point::max();
    Clock::time_point last = Clock::time_point::min();
    std::vector<double> rates;
    std::vector<double> waits;
    for (const Stream& stream : streams) {
        if (!stream.problem.empty()) {
            if (report.failed++ == 0) report.first_failure = stream.problem;
            continue;
        }
        report.events += stream.events;
        report.tokens += stream.reader.completion_tokens();
        if (stream.events == 0) continue;
        first = std::min(first, stream.first);
        last = std::max(last, stream.last);
        waits.push_back(seconds(stream.first - stream.sent) * 1000);
        const double time = seconds(stream.last - stream.sent - prefill);
        if (time > 0) rates.push_back(static_cast<double>(stream.events) / time);
    }
    if (rates.empty()) return report;
    report.seconds = seconds(last - first);
    report.events_per_second = static_cast<double>(report.events) / report.seconds;
    report.tokens_per_second = static_cast<double>(report.tokens) / report.seconds;
    const double mean =
        std::accumulate(rates.begin(), rates.end(), 0.0) / static_cast<double>(rates.size());
    report.slowest_of_mean = *std::min_element(rates.begin(), rates.end()) / mean;
    std::sort(waits.begin(), waits.end());
    const double shares[] = {0.5, 0.9, 0.99};
    for (int i = 0; i < 3; ++i) {
        const auto at = static_cast<std::size_t>(shares[i] * static_cast<double>(waits.size() - 1));
        report.time_to_first_event_ms[i] = waits[at];
    }
    return report;
}

}  // namespace

std::optional<double> process_cpu_seconds(int process) {
    std::ifstream file("/proc/" + std::to_string(process) + "/stat");
    std::string line;
    if (!std::getline(file, line)) return std::nullopt;
    // Fields are counted after the name, which may hold blanks and parentheses.
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    std::string skipped;
    for (int i = 0; i < 11; ++i)
        fields >> skipped;
    double user = 0;
    double system = 0;
    if (!(fields >> user >> system)) return std::nullopt;
    return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

Result<LoadReport> run_load_test(const LoadTest& test) {
    const HttpAddress address{test.host, test.port, {}};
    std::vector<Stream> streams(test.streams);
    const Descriptor poll(::epoll_create1(EPOLL_CLOEXEC));
    for (std::size_t i = 0; i < streams.size(); ++i) {
        PERCHERON_ASSIGN(streams[i].socket, connect_to(address));
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = i;
        ::epoll_ctl(poll.get(), EPOLL_CTL_ADD, streams[i].socket.get(), &event);
    }
    const std::optional<double> cpu_before =
        test.server_process > 0 ? process_cpu_seconds(test.server_process) : std::nullopt;
    const std::string request = request_bytes(test);
    for (Stream& stream : streams) {
        stream.sent = Clock::now();
        PERCHERON_TRY(send_all(stream.socket, request));
    }

    std::vector<epoll_event> ready(test.streams);
    const auto scratch = std::make_unique<char[]>(64 * 1024);
    std::uint32_t open = test.streams;
    while (open > 0) {
        const auto wait = std::chrono::milliseconds(test.patience).count();
        const int count = ::epoll_wait(poll.get(), ready.data(), static_cast<int>(ready.size()),
                                       static_cast<int>(wait));
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) {
            return Error(ErrorCode::io, "nothing came on " + std::to_string(open) +
                                            " open streams for " + std::to_string(wait / 1000) +
                                            " seconds");
        }
        for (int i = 0; i < count; ++i) {
            Stream& stream = streams[ready[static_cast<std::size_t>(i)].data.u64];
            if (!stream.open) continue;
            read_stream(stream, scratch.get(), 64 * 1024);
            if (stream.open) continue;
            --open;
            ::epoll_ctl(poll.get(), EPOLL_CTL_DEL, stream.socket.get(), nullptr);
        }
    }
    const std::optional<double> cpu_after =
        cpu_before ? process_cpu_seconds(test.server_process) : std::nullopt;
    for (Stream& stream : streams)
        judge(stream, test);
    LoadReport report = summarise(streams, test.prefill);
    if (cpu_after && report.events > 0) {
        report.server_cpu_us_per_event =
            (*cpu_after - *cpu_before) * 1e6 / static_cast<double>(report.events);
    }
    return report;
}

}  // namespace percheron::tools
