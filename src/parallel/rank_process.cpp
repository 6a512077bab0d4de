#include "parallel/rank_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

namespace percheron::parallel {
namespace {

constexpr const char* own_binary = "/proc/self/exe";
constexpr int connection = 3;  // in the child
constexpr std::size_t longest_line = 4096;

// In the child, where only what a signal handler may call is allowed.
[[noreturn]] void become_rank(char* const* arguments, int parent, int link, int output) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it ended before the line above
    // Above the numbers that they go to.
    const int far_link = ::fcntl(link, F_DUPFD, 10);
    const int far_output = ::fcntl(output, F_DUPFD, 10);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, STDIN_FILENO);
    ::dup2(far_output, STDOUT_FILENO);
    ::dup2(far_output, STDERR_FILENO);
    ::dup2(far_link, connection);
    ::syscall(SYS_close_range, connection + 1, ~0u, 0);
    std::signal(SIGINT, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::execv(own_binary, arguments);
    ::_exit(127);
}

Error fault(const char* what) {
    return Error(ErrorCode::io, std::string(what) + ": " + std::strerror(errno));
}

}  // namespace

Result<std::unique_ptr<RankProcess>> RankProcess::start(const std::vector<std::string>& arguments) {
    std::vector<std::string> words{"percheron"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    words.insert(words.end(), {"--connection", std::to_string(connection)});
    std::vector<char*> pointers;
    pointers.reserve(words.size() + 1);
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);

    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return fault("cannot make a socket pair");
    }
    Descriptor ours(ends[0]);
    const Descriptor theirs(ends[1]);
    if (::pipe2(ends, O_CLOEXEC) != 0) return fault("cannot make a pipe");
    Descriptor lines(ends[0]);
    const Descriptor output(ends[1]);
    ::fcntl(lines.number(), F_SETFL, O_NONBLOCK);
    const pid_t parent = ::getpid();
    const pid_t id = ::fork();
    if (id < 0) return fault("cannot start a process");
    if (id == 0) become_rank(pointers.data(), parent, theirs.number(), output.number());
    return std::unique_ptr<RankProcess>(new RankProcess(id, std::move(ours), std::move(lines)));
}

RankProcess::RankProcess(int id, Descriptor link, Descriptor lines)
    : id_(id),
      link_(std::move(link)),
      lines_(std::move(lines)),
      handle_(static_cast<int>(::syscall(SYS_pidfd_open, id, 0))) {}

RankProcess::~RankProcess() {
    if (status_) return;
    kill();
    int status = 0;
    while (::waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
}

void RankProcess::read_lines(const std::function<void(std::string_view)>& take) {
    std::array<char, 4096> piece;
    for (ssize_t count = 0; (count = ::read(lines_.number(), piece.data(), piece.size())) > 0;) {
        begun_.append(piece.data(), static_cast<std::size_t>(count));
        std::size_t first = 0;
        for (std::size_t end = 0; (end = begun_.find('\n', first)) != std::string::npos;
             first = end + 1) {
            take(std::string_view(begun_).substr(first, end - first));
        }
        begun_.erase(0, first);
        if (begun_.size() > longest_line) {
            take(begun_);
            begun_.clear();
        }
    }
}

void RankProcess::kill() {
    if (!status_) ::kill(id_, SIGKILL);
}

bool RankProcess::ended_within(std::chrono::milliseconds most) {
    if (status_) return true;
    pollfd end{handle_.number(), POLLIN, 0};
    // Without such a handle (an old kernel) there is nothing but to wait.
    if (handle_.number() >= 0 && ::poll(&end, 1, static_cast<int>(most.count())) <= 0) return false;
    int status = 0;
    if (::waitpid(id_, &status, 0) != id_) return false;
    status_ = status;
    return true;
}

std::string RankProcess::how_it_ended() const {
    if (!status_) return "is still ending";
    if (WIFSIGNALED(*status_)) {
        const int signal = WTERMSIG(*status_);
        return "was ended by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
    }
    return "exited with code " + std::to_string(WEXITSTATUS(*status_));
}

std::optional<int> RankProcess::exit_code() const {
    if (!status_ || !WIFEXITED(*status_)) return std::nullopt;
    return WEXITSTATUS(*status_);
}

}  // namespace percheron::parallel
