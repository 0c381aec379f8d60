//! Is the port free? Asked the way that tells the truth.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, socket};

use super::files::read_kernel;

/// What holds a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortState {
    /// Nothing.
    Free,
    /// Only connections of a server that has ended; the engine can bind it all the same.
    Lingering,
    /// Another program listens on it, or has bound it and will.
    Taken {
        /// Process that holds it, as `pid name`, when it can be seen.
        holder: Option<String>,
    },
    /// The address cannot be listened on at all.
    Unusable {
        /// The system's reason.
        reason: String,
    },
}

/// Looks at a port by binding it without `SO_REUSEADDR`: vLLM sets that option and binds early, so
/// two servers could bind the same port and fail minutes later (vllm-process.md 6).
#[must_use]
pub fn check_port(host: &str, port: u16) -> PortState {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address = match (host, port).to_socket_addrs().map(|mut found| found.next()) {
        Ok(Some(address)) => address,
        Ok(None) => return PortState::Unusable { reason: format!("`{host}` has no address") },
        Err(error) => return PortState::Unusable { reason: error.to_string() },
    };
    match try_bind(address) {
        Ok(()) => PortState::Free,
        Err(nix::errno::Errno::EADDRINUSE) => {
            let sockets = read_sockets(port);
            let listener = sockets.iter().find(|socket| socket.state == LISTEN);
            match listener {
                Some(listener) => PortState::Taken { holder: holder_of(listener.inode) },
                None if sockets.iter().any(|socket| socket.state == TIME_WAIT) => PortState::Lingering,
                None => PortState::Taken { holder: None },
            }
        }
        Err(errno) => PortState::Unusable { reason: errno.desc().to_owned() },
    }
}

fn try_bind(address: SocketAddr) -> nix::Result<()> {
    let family = match address.ip() {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    let socket = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&socket), &SockaddrStorage::from(address))
}

/// States in `/proc/net/tcp`.
const TIME_WAIT: u8 = 6;
const LISTEN: u8 = 10;

#[derive(Debug, PartialEq, Eq)]
struct Socket {
    state: u8,
    inode: u64,
}

fn read_sockets(port: u16) -> Vec<Socket> {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(read_kernel)
        .flat_map(|text| parse_sockets(&text, port))
        .collect()
}

/// Sockets of `/proc/net/tcp` whose local port is this one.
fn parse_sockets(text: &str, port: u16) -> Vec<Socket> {
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let local = u16::from_str_radix(fields.get(1)?.rsplit(':').next()?, 16).ok()?;
        let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
        let inode = fields.get(9)?.parse().ok()?;
        (local == port).then_some(Socket { state, inode })
    };
    text.lines().skip(1).filter_map(parse).collect()
}

/// The process that holds a socket, among those that can be seen.
fn holder_of(inode: u64) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    let processes = procfs::process::all_processes().ok()?;
    for process in processes.flatten() {
        let Ok(descriptors) = std::fs::read_dir(format!("/proc/{}/fd", process.pid())) else { continue };
        let holds = descriptors.flatten().any(|fd| {
            std::fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str())
        });
        if holds {
            let name = process.stat().map(|stat| stat.comm).unwrap_or_default();
            return Some(format!("{} {name}", process.pid()));
        }
    }
    None
}

/// A port that is free now, chosen by the system.
///
/// # Errors
/// When the address cannot be listened on.
pub fn find_free_port(host: &str) -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind((host, 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::{PortState, Socket, check_port, find_free_port, parse_sockets};

    #[test]
    fn a_listener_is_named() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let taken = check_port("127.0.0.1", port);
        let me = std::process::id().to_string();
        assert!(
            matches!(&taken, PortState::Taken { holder: Some(holder) } if holder.starts_with(&me)),
            "{taken:?}"
        );
        drop(listener);
        assert_eq!(check_port("127.0.0.1", port), PortState::Free);
        assert_eq!(check_port("localhost", find_free_port("127.0.0.1").expect("free")), PortState::Free);
    }

    #[test]
    fn connections_that_linger_are_told_from_a_server() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let client = std::net::TcpStream::connect(address).expect("a client");
        let (server, _) = listener.accept().expect("a connection");
        drop(server); // the side that closes first lingers
        drop(client);
        drop(listener);
        assert_eq!(check_port("127.0.0.1", address.port()), PortState::Lingering);
    }

    #[test]
    fn a_port_that_is_bound_but_not_yet_listening_is_taken() {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, socket};
        let early = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).expect("a socket");
        let fd = std::os::fd::AsRawFd::as_raw_fd(&early);
        bind(fd, &SockaddrIn::new(127, 0, 0, 1, 0)).expect("bound");
        let port = getsockname::<SockaddrIn>(fd).expect("an address").port();
        assert_eq!(check_port("127.0.0.1", port), PortState::Taken { holder: None });
    }

    #[test]
    fn addresses_that_cannot_be_used_say_why() {
        assert!(matches!(check_port("192.0.2.1", 8000), PortState::Unusable { .. }));
        assert!(matches!(check_port("no such host", 8000), PortState::Unusable { .. }));
    }

    #[test]
    fn kernel_lines_are_parsed() {
        let text = "  sl  local_address rem_address   st\n   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 x 100\n torn\n";
        assert_eq!(parse_sockets(text, 8000), [Socket { state: 10, inode: 4242 }]);
        assert!(parse_sockets(text, 8001).is_empty());
    }
}
