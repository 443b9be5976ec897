//! Daemons that are killed in the middle of a sync: what they have to do, and whether they have done only a part.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use ipvs::Ipvs as _;

use super::{PATIENCE, Scene, id};
use crate::stage::objects::{self, Condition, Endpoint, Kind, Write};

impl Scene<'_> {
    /// Deletes the virtual servers without traffic, with their addresses; adds an unwanted real server to
    /// those with traffic, and changes their scheduler.
    pub(in crate::chaos) fn ruin(&mut self) -> Result<()> {
        let (mut servers, mut addresses) = (String::new(), String::new());
        for vip in &self.others {
            // Writing to a String cannot fail.
            let _ = writeln!(servers, "-D -t {vip}");
            let _ = writeln!(addresses, "addr del {}/32 dev kube-ipvs0", vip.ip());
        }
        for vip in &self.used {
            let _ = writeln!(servers, "-a -t {vip} -r 192.0.2.9:8080 -m -w 0\n-E -t {vip} -s wlc");
        }
        let mut file = tempfile::NamedTempFile::new()?;
        std::io::Write::write_all(&mut file, servers.as_bytes())?;
        self.stage.lab.node.run("sh", &["-c", &format!("ipvsadm -R < {}", file.path().display())])?;
        self.ip(&addresses)?;
        self.ruins = self.extent()?;
        Ok(())
    }

    /// Waits until one of the virtual servers that are gone is back.
    pub(in crate::chaos) fn wait_for_a_repair(&mut self) -> Result<()> {
        let vip = self.random.choice(&self.others).copied().context("nothing is ruined")?;
        let begun = Instant::now();
        // This is the fastest check, and a sync does not take long.
        while self.kernel.real_servers(id(vip)).map_or(0, |servers| servers.len()) == 0 {
            ensure!(begun.elapsed() < PATIENCE, "the new daemon does nothing:\n{}", self.daemon()?.log());
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Counts the daemon if only some of what was removed is back.
    pub(in crate::chaos) fn count_if_cut_short(&mut self) -> Result<()> {
        let extent = self.extent()?;
        self.cut_short += usize::from(extent != self.ruins && extent != self.whole);
        Ok(())
    }

    /// How many virtual servers and addresses there are.
    pub(super) fn extent(&mut self) -> Result<(usize, usize)> {
        let addresses = self.stage.lab.node.run("ip", &["-o", "addr", "show", "dev", "kube-ipvs0"])?;
        Ok((self.kernel.virtual_servers()?.len(), addresses.lines().count()))
    }

    /// Takes the second pod from all Services, those with traffic too, while the daemon is stopped: when it goes on, all
    /// that is one sync, or two. Then waits until one of the last Services has lost its pod.
    pub(in crate::chaos) fn wait_for_a_change(&mut self) -> Result<()> {
        let daemon = self.daemon()?.id().to_string();
        let signal = |name| self.stage.lab.node.run("kill", &[name, &daemon]);
        signal("-STOP")?;
        let written = self.write_endpoints(&[1]);
        signal("-CONT")?;
        written?;
        let last = self.last_written().to_vec();
        let vip = self.random.choice(&last).copied().context("nothing changes")?;
        let begun = Instant::now();
        while self.second_pod(vip)? == Some(1) {
            ensure!(begun.elapsed() < PATIENCE, "the daemon does nothing:\n{}", self.daemon()?.log());
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Counts the daemon if only some of the last Services have lost their second pod, or some have it still with the
    /// weight 0, which it gets first. No client is connected to it there.
    pub(in crate::chaos) fn count_if_changed_in_part(&mut self) -> Result<()> {
        let vips = self.last_written().to_vec();
        let found = vips.into_iter().map(|vip| self.second_pod(vip)).collect::<Result<BTreeSet<_>>>()?;
        let is_whole = found == BTreeSet::from([Some(1)]) || found == BTreeSet::from([None]);
        self.cut_short += usize::from(!is_whole);
        Ok(())
    }

    /// Gives all Services these pods, by number.
    pub(in crate::chaos) fn write_endpoints(&self, pods: &[u8]) -> Result<()> {
        let endpoints: Vec<_> =
            pods.iter().map(|&number| Endpoint { number, condition: Condition::Ready }).collect();
        let names = |kind, numbers: Range<usize>| numbers.map(move |number| format!("{kind}-{number}"));
        // A daemon that has nothing to do syncs for the first one at once, and a second later for the others: those
        // with traffic are to be among these.
        let all = names("other", 0..self.written_first())
            .chain(names("used", 0..self.used.len()))
            .chain(names("other", self.written_first()..self.others.len()));
        for name in all {
            let slice = objects::slice(&format!("{name}-v4"), &name, &endpoints);
            self.write(&Write::Replace(Kind::Slice, slice))?;
        }
        Ok(())
    }

    /// How many of the Services without traffic are written before those with traffic.
    fn written_first(&self) -> usize {
        self.others.len() / 2
    }

    fn last_written(&self) -> &[SocketAddr] {
        self.others.get(self.written_first()..).unwrap_or_default()
    }

    /// The weight of the second pod, if it is a real server.
    fn second_pod(&mut self, vip: SocketAddr) -> Result<Option<u32>> {
        let second = IpAddr::from(objects::ipv4(2));
        let servers = self.kernel.real_servers(id(vip))?;
        Ok(servers
            .iter()
            .find(|server| server.config.address.ip == second)
            .map(|server| server.config.weight))
    }
}
