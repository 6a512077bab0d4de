#include "tools/terminal_screen.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

namespace percheron::tools {
namespace {

// The other screen, no cursor, and no line that runs on into the next one.
constexpr std::string_view take_sequence = "\033[?1049h\033[?25l\033[?7l";
constexpr std::string_view give_sequence = "\033[0m\033[?7h\033[?25h\033[?1049l";
constexpr int fault_signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// What a handler of a fault needs has no other place than here.
termios terminal_before;
volatile sig_atomic_t screen_taken = 0;

void write_all(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::write(STDOUT_FILENO, bytes.data(), bytes.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return;
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
}

void take_screen() {
    termios raw = terminal_before;
    // Keys at once and unseen; Ctrl-C and Ctrl-Z stay signals.
    raw.c_lflag &= static_cast<tcflag_t>(~(ICANON | ECHO));
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    screen_taken = 1;
    write_all(take_sequence);
}

void give_screen_back() {
    if (screen_taken == 0) return;
    screen_taken = 0;
    write_all(give_sequence);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &terminal_before);
}

void on_fault(int signal) {
    give_screen_back();
    ::signal(signal, SIG_DFL);
    ::raise(signal);
}

Error screen_failure(std::string_view what) {
    return Error(ErrorCode::io, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<TerminalScreen>> TerminalScreen::open() {
    if (::tcgetattr(STDIN_FILENO, &terminal_before) != 0) {
        return screen_failure("cannot read the terminal's settings");
    }
    std::unique_ptr<TerminalScreen> screen(new TerminalScreen());
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH})
        sigaddset(&taken, signal);
    ::sigprocmask(SIG_BLOCK, &taken, &screen->signals_before_);
    screen->signals_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    screen->events_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
    for (const int descriptor : {screen->signals_.get(), STDIN_FILENO}) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.fd = descriptor;
        if (::epoll_ctl(screen->events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
            return screen_failure("cannot wait for keys and signals");
        }
    }
    for (const int signal : fault_signals)
        ::signal(signal, on_fault);
    take_screen();
    return screen;
}

TerminalScreen::~TerminalScreen() {
    give_screen_back();
    for (const int signal : fault_signals)
        ::signal(signal, SIG_DFL);
    ::sigprocmask(SIG_SETMASK, &signals_before_, nullptr);
}

TerminalScreen::News TerminalScreen::take_news() {
    News news;
    epoll_event events[2];
    const int count = ::epoll_wait(events_.get(), events, 2, 0);
    for (int i = 0; i < count; ++i) {
        if (events[i].data.fd == STDIN_FILENO) {
            char keys[256];
            const ssize_t size = ::read(STDIN_FILENO, keys, sizeof keys);
            const std::string_view pressed(keys,
                                           static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
            if (pressed.find_first_of("qQ") != std::string_view::npos) news.quit = true;
            if ((events[i].events & (EPOLLHUP | EPOLLERR)) != 0) news.quit = true;
            continue;
        }
        signalfd_siginfo info{};
        while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
            if (info.ssi_signo == SIGWINCH) {
                news.redraw = true;
            } else if (info.ssi_signo == SIGTSTP) {
                give_screen_back();
                ::raise(SIGSTOP);
                take_screen();
                news.redraw = true;
            } else {
                news.quit = true;
            }
        }
    }
    return news;
}

TerminalScreen::Size TerminalScreen::size() const {
    winsize window{};
    Size size;
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0 &&
        window.ws_row > 0) {
        size.columns = window.ws_col;
        size.rows = window.ws_row;
    }
    return size;
}

// Lines are cleared before they are written: a character in the last column leaves the cursor on
// itself.
void TerminalScreen::draw(const std::vector<std::string>& lines) {
    std::string picture = "\033[?2026h\033[H";  // shown at once, where the terminal can
    for (std::size_t i = 0; i < lines.size(); ++i)
        picture.append(i > 0 ? "\r\n" : "").append("\033[2K").append(lines[i]);
    if (lines.empty()) picture += "\033[J";
    if (!lines.empty() && lines.size() < size().rows) picture += "\r\n\033[J";
    write_all(picture + "\033[?2026l");
}

}  // namespace percheron::tools
