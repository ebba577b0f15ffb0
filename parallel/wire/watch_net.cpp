// Sockets that never block, moved by poll(2) on the watchdog's thread.
#include "parallel/wire/watch_net.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <random>
#include <sstream>

namespace thinwire {
namespace {

constexpr size_t kSecret = 32, kMostAnswer = 64 << 10;
constexpr size_t kMostCallers = 256, kMostAtOnce = 256;  // sockets: below what a process may usually open
constexpr int kMostAddresses = 6;
constexpr std::chrono::milliseconds kConnectPatience{200};

// One family and port of a host, as connect(2) wants it.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Endpoint endpoint_of(const std::string& text, uint16_t port) {
  Endpoint e;
  auto* four = reinterpret_cast<sockaddr_in*>(&e.storage);
  auto* six = reinterpret_cast<sockaddr_in6*>(&e.storage);
  if (::inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET, four->sin_port = htons(port), e.length = sizeof *four;
  } else if (::inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6, six->sin6_port = htons(port), e.length = sizeof *six;
  }
  return e;
}

// Those of interfaces that are up, the own machine's last.
std::vector<std::string> own_addresses() {
  std::vector<std::string> list;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return list;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
      if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != family || (at->ifa_flags & IFF_UP) == 0 ||
          (at->ifa_flags & IFF_LOOPBACK) != 0 || list.size() >= kMostAddresses)
        continue;
      char text[INET6_ADDRSTRLEN] = {};
      const void* bytes = nullptr;
      if (family == AF_INET) {
        bytes = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
      } else {
        const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
        if (IN6_IS_ADDR_LINKLOCAL(&six)) continue;
        bytes = &six;
      }
      if (::inet_ntop(family, bytes, text, sizeof text) != nullptr) list.emplace_back(text);
    }
  }
  ::freeifaddrs(all);
  list.emplace_back("127.0.0.1");
  return list;
}

}  // namespace

struct WatchNet::Question {
  std::vector<Endpoint> left;  // the next address last
  Descriptor socket;
  bool asked = false, over = false;
  WatchClock::Time since;
  std::string words, answer;
};

struct WatchNet::Caller {
  Descriptor socket;
  std::string words;
};

WatchNet::WatchNet() : lowest_asker_(INT_MAX) {
  for (const int family : {AF_INET6, AF_INET}) {
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    Endpoint any = endpoint_of(family == AF_INET6 ? "::" : "0.0.0.0", 0);
    const int both = 0;
    if (family == AF_INET6) ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof both);
    if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&any.storage), any.length) != 0 ||
        ::listen(socket.get(), static_cast<int>(kMostCallers)) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&any.storage), &any.length) != 0)
      continue;
    listener_ = std::move(socket);
    address_ = std::to_string(ntohs(reinterpret_cast<sockaddr_in*>(&any.storage)->sin_port));
    for (const std::string& address : own_addresses()) address_ += " " + address;
    return;
  }
}

WatchNet::~WatchNet() = default;

std::string WatchNet::new_secret() {
  std::random_device random;
  std::string text;
  for (size_t i = 0; i < kSecret / 8; ++i) {
    char word[9];
    std::snprintf(word, sizeof word, "%08x", random());
    text += word;
  }
  return text;
}

void WatchNet::join(int rank, std::vector<std::string> addresses, const std::string& secret) {
  rank_ = rank, addresses_ = std::move(addresses), secret_ = secret;
}

const std::string& WatchNet::answer(int peer) const {
  static const std::string nothing;
  const auto found = questions_.find(peer);
  return found != questions_.end() && found->second.over ? found->second.answer : nothing;
}

bool WatchNet::reached() const {
  return std::any_of(questions_.begin(), questions_.end(), [](auto& q) { return q.second.asked || q.second.over; });
}

void WatchNet::ask(int peer) {
  if (questions_.contains(peer) || peer < 0 || static_cast<size_t>(peer) >= addresses_.size()) return;
  Question& question = questions_[peer];
  std::istringstream words(addresses_[static_cast<size_t>(peer)]);
  uint16_t port = 0;
  words >> port;
  for (std::string text; words >> text;)
    if (const Endpoint e = endpoint_of(text, port); e.length > 0) question.left.push_back(e);
  std::reverse(question.left.begin(), question.left.end());
  question.words = secret_ + std::to_string(rank_) + " " + std::to_string(peer) + "\n";
}

void WatchNet::connect(Question& question, WatchClock::Time now) {
  question.socket.close();
  question.asked = false;
  question.answer.clear();
  while (!question.left.empty()) {
    const Endpoint to = question.left.back();
    question.left.pop_back();
    question.socket = Descriptor(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    question.since = now;
    if (question.socket &&
        (::connect(question.socket.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length) == 0 ||
         errno == EINPROGRESS))
      return;
    question.socket.close();
  }
}

// True: there is something new.
bool WatchNet::move(Question& question, short events, WatchClock::Time now) {
  if (!question.asked) {
    int error = 0;
    socklen_t length = sizeof error;
    if (events == 0) {
      if (now - question.since > kConnectPatience && !question.left.empty()) connect(question, now);
      return false;
    }
    if (::getsockopt(question.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0 ||
        ::send(question.socket.get(), question.words.data(), question.words.size(), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(question.words.size())) {
      connect(question, now);
      return false;
    }
    question.asked = true;
    return false;
  }
  if (events == 0) return false;
  char buffer[4096];
  const ssize_t n = ::recv(question.socket.get(), buffer, sizeof buffer, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n > 0 && question.answer.size() + static_cast<size_t>(n) <= kMostAnswer) {
    question.answer.append(buffer, static_cast<size_t>(n));
    return false;
  }
  // Somebody else's port, at an address that this machine has as well, says nothing.
  if (n != 0 || question.answer.empty()) {
    connect(question, now);
    return false;
  }
  question.socket.close();
  question.over = true;
  return true;
}

// True: the caller is to be dropped.
bool WatchNet::serve(Caller& caller, const std::function<std::string()>& report) {
  char buffer[256];
  const ssize_t n = ::recv(caller.socket.get(), buffer, sizeof buffer, 0);
  if (n < 0) return errno != EAGAIN && errno != EINTR;
  if (n == 0 || caller.words.size() + static_cast<size_t>(n) > sizeof buffer) return true;
  caller.words.append(buffer, static_cast<size_t>(n));
  if (caller.words.back() != '\n') return false;
  int asker = -1, asked = -1;
  if (secret_.empty() || caller.words.compare(0, secret_.size(), secret_) != 0 ||
      std::sscanf(caller.words.c_str() + secret_.size(), "%d %d", &asker, &asked) != 2 || asked != rank_ || asker < 0)
    return true;
  lowest_asker_ = std::min(lowest_asker_, asker);
  // A new socket takes so much at once.
  const std::string text = report();
  if (::send(caller.socket.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) return true;
  ::shutdown(caller.socket.get(), SHUT_WR);
  return true;
}

void WatchNet::turn(double seconds, int wake, const std::function<std::string()>& report, WatchClock& clock) {
  const WatchClock::Time begun = clock.now();
  double left = seconds;
  for (bool news = false; !news;) {
    size_t open = 0;
    for (auto& [peer, question] : questions_) open += question.socket ? 1 : 0;
    for (auto& [peer, question] : questions_) {
      if (open >= kMostAtOnce) break;
      if (question.over || question.socket || question.left.empty()) continue;
      connect(question, clock.now());
      open += question.socket ? 1 : 0;
    }
    std::vector<pollfd> wishes = {{wake, POLLIN, 0}, {listener_ ? listener_.get() : -1, POLLIN, 0}};
    std::vector<Question*> moved;
    for (const Caller& caller : callers_) wishes.push_back({caller.socket.get(), POLLIN, 0});
    const size_t callers = callers_.size();
    for (auto& [peer, question] : questions_) {
      if (!question.socket) continue;
      wishes.push_back({question.socket.get(), static_cast<short>(question.asked ? POLLIN : POLLOUT), 0});
      moved.push_back(&question);
    }
    constexpr double kWithoutAWord = 0.05;  // then other addresses are tried
    clock.poll(wishes, moved.empty() ? left : std::min(left, kWithoutAWord));
    if (wishes[0].revents != 0) return;
    const WatchClock::Time now = clock.now();
    for (size_t i = 0; i < moved.size(); ++i) news = move(*moved[i], wishes[2 + callers + i].revents, now) || news;
    const int before = lowest_asker_;
    for (size_t i = callers; i-- > 0;)
      if (wishes[2 + i].revents != 0 && serve(callers_[i], report))
        callers_.erase(callers_.begin() + static_cast<ptrdiff_t>(i));
    while (wishes[1].revents != 0) {
      Descriptor socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) break;
      if (callers_.size() >= kMostCallers) callers_.erase(callers_.begin());
      callers_.push_back({std::move(socket), ""});
      if (serve(callers_.back(), report)) callers_.pop_back();
    }
    left = seconds - std::chrono::duration<double>(clock.now() - begun).count();
    news = news || lowest_asker_ != before || left <= 0.0;
  }
}

}  // namespace thinwire
