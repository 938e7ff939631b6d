package isonomy.am;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.Supplier;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.net.NetUtils;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.webapp.util.WebAppUtils;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The machines of YARN's web proxy, which are the only ones that may read an application master's page, as in YARN's
 * own AmIpFilter. Names are resolved again when an unknown client connects, at most every five minutes.
 */
final class ProxyHosts implements Predicate<InetAddress> {
  private static final Logger LOG = LoggerFactory.getLogger(ProxyHosts.class);
  private static final long AGAIN_NS = 300_000_000_000L;

  private final Supplier<List<String>> names;
  private final LongSupplier nanos;
  private Set<InetAddress> known;
  private long askedNs;

  ProxyHosts(Supplier<List<String>> names, LongSupplier nanos) {
    this.names = names;
    this.nanos = nanos;
  }

  /** The hosts in the configuration. YARN replaces a loopback address by the machine's name, so it is added itself. */
  static ProxyHosts of(Configuration conf) {
    return new ProxyHosts(() -> {
      List<String> addresses = new ArrayList<>(WebAppUtils.getProxyHostsAndPortsForAmFilter(conf));
      String own = conf.get(YarnConfiguration.PROXY_ADDRESS, "");
      addresses.add(own.isEmpty() ? rmAddress(conf) : own);
      return addresses.stream().filter(address -> !address.isEmpty())
          .map(address -> NetUtils.createSocketAddr(address).getHostString()).collect(Collectors.toList());
    }, System::nanoTime);
  }

  @Override
  public synchronized boolean test(InetAddress from) {
    if (known != null && isKnown(from)) {
      return true;
    }
    if (known == null || nanos.getAsLong() - askedNs >= AGAIN_NS) {
      known = lookUp();
      askedNs = nanos.getAsLong();
    }
    return isKnown(from);
  }

  /** Whether the address is known; all loopback addresses count as equal, as they are this machine. */
  private boolean isKnown(InetAddress from) {
    return known.contains(from) || from.isLoopbackAddress() && known.stream().anyMatch(InetAddress::isLoopbackAddress);
  }

  private Set<InetAddress> lookUp() {
    Set<InetAddress> found = new HashSet<>();
    for (String name : names.get()) {
      try {
        found.addAll(List.of(InetAddress.getAllByName(name)));
      } catch (UnknownHostException e) {
        LOG.warn("the web proxy's host {} is not known here", name);
      }
    }
    return found;
  }

  /**
   * The URL of an app's page for a browser: relative to its host if YARN's proxy is part of the
   * ResourceManager; with a separate proxy ({@code yarn.web-proxy.address}) at the ResourceManager's address.
   */
  static String pageOf(ApplicationId app, Configuration conf) {
    String proxy = conf.get(YarnConfiguration.PROXY_ADDRESS, "");
    return proxy.isEmpty() ? AppPage.UI + app : finalPageOf(app, conf);
  }

  /** The absolute URL of an app's page; empty if the configuration does not name the ResourceManager. */
  static String finalPageOf(ApplicationId app, Configuration conf) {
    String address = rmAddress(conf);
    String scheme = YarnConfiguration.useHttps(conf) ? "https://" : "http://";
    return address.isEmpty() ? "" : scheme + address + AppPage.UI + app;
  }

  /** HOST:PORT of the ResourceManager's web app; of a pair the first one's, because the standby redirects browsers. */
  private static String rmAddress(Configuration conf) {
    String key = YarnConfiguration.useHttps(conf) ? YarnConfiguration.RM_WEBAPP_HTTPS_ADDRESS
        : YarnConfiguration.RM_WEBAPP_ADDRESS;
    String address = conf.get(key, "");
    if (conf.getBoolean(YarnConfiguration.RM_HA_ENABLED, false)) {
      String first = conf.getTrimmedStrings(YarnConfiguration.RM_HA_IDS, "")[0];
      String host = conf.get(YarnConfiguration.RM_HOSTNAME + "." + first, "0.0.0.0");
      address = conf.get(key + "." + first, host + address.substring(Math.max(0, address.lastIndexOf(':'))));
    }
    return address.startsWith("0.0.0.0") ? "" : address;
  }
}
