// percheron top: a server's figures in the terminal, as they change.
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <poll.h>
#include <unistd.h>

#include "commands.h"
#include "tools/http_client.h"
#include "tools/server_sample.h"
#include "tools/terminal_screen.h"
#include "tools/top_history.h"
#include "tools/top_view.h"

namespace percheron::apps {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view not_ready = "not_ready";  // why an error has no figures

struct Arguments {
    std::string url = "http://127.0.0.1:8000";
    double interval = 1;  // seconds
    bool once = false;
    std::string key_file;
};

// Asks the server; an interrupt ends that at once.
class Watcher {
  public:
    Watcher(tools::HttpAddress address, std::string key) : address_(std::move(address)) {
        options_.api_key = std::move(key);
    }

    void interrupt_by(int descriptor) { options_.interrupt = descriptor; }
    std::string url() const { return address_.url(); }

    Result<tools::ServerSample> ask() const {
        PERCHERON_ASSIGN(const std::string metrics, get("/metrics"));
        PERCHERON_ASSIGN(const std::string status, get("/status"));
        auto sample = tools::read_sample(metrics, status);
        if (!sample.ok()) return sample.error().in(url());
        return sample;
    }

  private:
    Result<std::string> get(std::string_view path) const {
        PERCHERON_ASSIGN(tools::HttpReply reply, tools::fetch(address_, path, options_));
        if (reply.status == 200) return std::move(reply.body);
        if (reply.status == 401) {
            return Error(ErrorCode::invalid_argument,
                         options_.api_key.empty()
                             ? "the server at " + url() +
                                   " wants a key; name a file with one by "
                                   "--api-key-file"
                             : "the server at " + url() +
                                   " does not know the key of "
                                   "--api-key-file; name a file with another one");
        }
        if (reply.status == 503) {
            return Error(ErrorCode::unavailable,
                         "the server at " + url() +
                             " is not ready: it still loads its model, or "
                             "its engine has stopped",
                         not_ready);
        }
        return Error(ErrorCode::unsupported, url() + std::string(path) + " answered with status " +
                                                 std::to_string(reply.status) +
                                                 "; check that percheron serve runs there");
    }

    tools::HttpAddress address_;
    tools::FetchOptions options_;
};

bool is_set(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
}

bool writes_utf8() {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
        if (!is_set(name)) continue;
        std::string value = std::getenv(name);
        for (char& c : value)
            c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
    }
    return false;
}

bool terminal_can_draw() {
    const char* kind = std::getenv("TERM");
    return ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1 && kind != nullptr &&
           std::string_view(kind) != "dumb" && *kind != '\0';
}

void print_error(const Error& error) {
    say_fault("top", error.message());
}

double seconds_now() {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void print_lines(const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
        std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

Status show_once(const Watcher& watcher) {
    tools::TopHistory history(watcher.url());
    PERCHERON_ASSIGN(tools::ServerSample sample, watcher.ask());
    history.add(std::move(sample), seconds_now());
    tools::TopLook look;
    look.columns = 100;
    if (is_set("COLUMNS")) look.columns = std::max(1, std::atoi(std::getenv("COLUMNS")));
    look.rows = 100'000;
    look.colour = ::isatty(STDOUT_FILENO) == 1 && !is_set("NO_COLOR");
    look.unicode = writes_utf8();
    print_lines(tools::render_top(history.state(), look));
    return {};
}

// A server is there and will have figures when its model is loaded.
bool will_come(const Error& error) {
    return error.reason() == not_ready;
}

// A line each time, for a file or a pipe; ends with the program.
Status show_lines(const Watcher& watcher, double interval) {
    bool begun = false;
    std::string trouble;
    while (true) {
        const auto sample = watcher.ask();
        if (sample.ok()) {
            print_lines({tools::render_top_line(*sample)});
            begun = true;
            trouble.clear();
        } else if (!begun && !will_come(sample.error())) {
            return sample.error();
        } else if (sample.error().message() != trouble) {
            trouble = sample.error().message();
            print_error(sample.error());
        }
        ::poll(nullptr, 0, static_cast<int>(interval * 1000));
    }
}

// Waits for news or until `due`; true when the view shall end.
bool handle_news(tools::TerminalScreen& screen, double due, bool& redraw) {
    const double left = std::max(0.0, due - seconds_now());
    pollfd news{screen.news_descriptor(), POLLIN, 0};
    ::poll(&news, 1, static_cast<int>(std::ceil(left * 1000)));
    const tools::TerminalScreen::News what = screen.take_news();
    redraw = redraw || what.redraw;
    return what.quit;
}

Status show_screen(Watcher& watcher, double interval) {
    tools::TopHistory history(watcher.url());
    auto first = watcher.ask();
    if (first.ok()) {
        history.add(std::move(*first), seconds_now());
    } else if (will_come(first.error())) {
        history.fail(first.error().message());
    } else {
        return first.error();
    }

    PERCHERON_ASSIGN(const auto screen, tools::TerminalScreen::open());
    watcher.interrupt_by(screen->news_descriptor());
    double due = seconds_now() + interval;
    bool redraw = true;
    while (true) {
        if (redraw) {
            const tools::TerminalScreen::Size size = screen->size();
            screen->draw(tools::render_top(
                history.state(),
                {size.columns, size.rows, !is_set("NO_COLOR"), writes_utf8(), true}));
            redraw = false;
        }
        if (handle_news(*screen, due, redraw)) return {};
        if (redraw || seconds_now() < due) continue;
        auto sample = watcher.ask();
        if (!sample.ok() && sample.error().code() == ErrorCode::cancelled) continue;
        if (sample.ok()) {
            history.add(std::move(*sample), seconds_now());
        } else {
            history.fail(sample.error().message());
        }
        due = seconds_now() + interval;
        redraw = true;
    }
}

Status run(const Arguments& arguments) {
    PERCHERON_ASSIGN(tools::HttpAddress address, tools::parse_http_address(arguments.url));
    std::string key;
    if (!arguments.key_file.empty()) {
        PERCHERON_ASSIGN(key, tools::read_api_key(arguments.key_file));
    }
    Watcher watcher(std::move(address), std::move(key));
    if (arguments.once) return show_once(watcher);
    if (!terminal_can_draw()) return show_lines(watcher, arguments.interval);
    return show_screen(watcher, arguments.interval);
}

}  // namespace

void add_top(CLI::App& app, int& exit_code) {
    const auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        app.add_subcommand("top",
                           "A server's figures in the terminal: what runs and waits, tokens a "
                           "second, caches, errors.\n"
                           "q or Ctrl-C ends it.  Without a terminal it writes a line each time.");
    command->footer("Example: percheron top http://127.0.0.1:8000 --interval 2");
    command->add_option("URL", arguments->url, "Address of a running percheron serve")
        ->check([](const std::string& url) {
            const auto address = tools::parse_http_address(url);
            return address.ok() ? std::string() : address.error().message();
        })
        ->capture_default_str();
    command->add_option("--interval", arguments->interval, "Seconds from one look to the next")
        ->check(CLI::Range(0.1, 3600.0))
        ->capture_default_str();
    command->add_flag("--once", arguments->once, "One picture as plain text, then the end");
    command->add_option("--api-key-file", arguments->key_file,
                        "File with the server's key; of several lines the first counts");
    command->callback([arguments, &exit_code] {
        if (const Status status = run(*arguments); !status.ok()) {
            print_error(status.error());
            exit_code = 1;
        }
    });
}

}  // namespace percheron::apps
