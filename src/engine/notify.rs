//! The datagram socket of the service manager (sd_notify(3)).

use std::collections::BTreeMap;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where to tell the service manager.
#[derive(Debug)]
pub struct NotifySocket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl NotifySocket {
    /// The socket that `NOTIFY_SOCKET` names: a path, or `@` and an abstract name. `None` without one, and
    /// for addresses that are not understood (`vsock:`).
    #[must_use]
    pub fn from_env(env: &BTreeMap<String, String>) -> Option<Self> {
        let name = env.get("NOTIFY_SOCKET")?;
        let address = match name.strip_prefix('@') {
            Some(name) => SocketAddr::from_abstract_name(name.as_bytes()).ok()?,
            None if name.starts_with('/') => SocketAddr::from_pathname(name).ok()?,
            None => return None,
        };
        let socket = UnixDatagram::unbound().ok()?;
        // A manager that does not read must not hold up a launch.
        socket.set_nonblocking(true).ok()?;
        Some(Self { socket, address })
    }

    /// Sends one message of one or more `KEY=VALUE` lines.
    pub fn send(&self, message: &str) {
        if let Err(error) = self.socket.send_to_addr(message.as_bytes(), &self.address) {
            tracing::debug!("the service manager was not told: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NotifySocket;
    use std::collections::BTreeMap;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    fn socket(name: &str) -> Option<NotifySocket> {
        NotifySocket::from_env(&BTreeMap::from([("NOTIFY_SOCKET".to_owned(), name.to_owned())]))
    }

    #[test]
    fn paths_and_abstract_names_are_reached_and_others_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("kdeploy-test-{}", std::process::id());
        let manager = UnixDatagram::bind(&path).unwrap();
        let abstract_one =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name.as_bytes()).unwrap()).unwrap();
        let mut heard = [0; 64];
        for (manager, given) in
            [(manager, path.to_str().unwrap().to_owned()), (abstract_one, format!("@{name}"))]
        {
            socket(&given).unwrap().send("READY=1\nSTATUS=x");
            let length = manager.recv(&mut heard).unwrap();
            assert_eq!(&heard[..length], b"READY=1\nSTATUS=x");
        }
        assert!(socket("vsock:2:1234").is_none() && socket("").is_none());
        assert!(NotifySocket::from_env(&BTreeMap::new()).is_none());
        socket("/nowhere/notify").unwrap().send("READY=1"); // nobody there is nobody's error
    }
}
